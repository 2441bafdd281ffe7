"""Semi-supervised classification as a task of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from isda.lab.choices import expect_type
from isda.lab.data import DataSet, ZCAWhitening
from isda.lab.data.augment import Compose
from isda.lab.engine.config import RunConfig
from isda.lab.engine.options import option_types, split_method
from isda.lab.engine.settings import AUTO, RunSettings, fit_batch_size, warm_up_steps
from isda.lab.engine.task import HeldOut, Job, RunContext
from isda.lab.methods.semi import NAMES, defaults_for, inputs_for
from isda.lab.methods.semi.methods import ISDA_SUFFIX
from isda.lab.networks import Network
from isda.lab.tasks.classification.pipelines import default_augmentation
from isda.lab.tasks.classification.resolve import choose_network, image_fields
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings
from isda.lab.tasks.classification.task import Classification, ImageJob
from isda.lab.tasks.common.data import EvaluationImages, check_held_out
from isda.lab.tasks.semi_supervised.data import (
    WEAK,
    WHITENING_FILE,
    SemiBatch,
    normalised,
    normaliser_for,
    semi_batches,
    split_data,
    whitening_for,
)
from isda.lab.tasks.semi_supervised.method import SemiMethod, create_method
from isda.lab.tasks.semi_supervised.settings import (
    SemiConfig,
    SemiSettings,
    declared_options,
    resolve_options,
    tuning_grid,
)

# With fewer images than this per pixel (and channel) ZCA fits their noise, and blows up that of the test images.
IMAGES_PER_PIXEL = 10


def resolve(settings: SemiSettings, data: DataSet) -> SemiConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting is missing, out of range or not for semi-supervised methods.
    """
    text = settings.method or "supervised"
    name, _ = split_method(text)
    method = name.removesuffix(ISDA_SUFFIX)
    if not isinstance(data.x_train, Tensor):
        raise ValueError(f"method {name} needs images of one size in memory, {data.name} is decoded on access")
    if settings.ema is not None and method == "mean-teacher":
        raise ValueError(
            f"ema is not for method {name}, whose teacher is an average already; its option is teacher_decay"
        )
    if settings.generated is not None or settings.generated_share is not None:
        raise ValueError(f"method {name} does not support --generated, which is for supervised methods")
    if settings.accumulate not in (None, 1):
        raise ValueError(f"method {name} does not support --accumulate, which is for supervised methods")
    if settings.pretrained is not None:
        raise ValueError(f"method {name} does not support --pretrained, which is for supervised methods")
    network, recipe = choose_network(settings, data)
    labels, unlabelled, held = _images(settings, name, len(data.y_train))
    samples = labels - held + unlabelled
    defaults, inputs = defaults_for(method, data.name), inputs_for(data.name)
    values = image_fields(settings, data, network, recipe, held)
    size = fit_batch_size(values["batch_size"], samples, settings.batch_size is not AUTO)
    per_batch = settings.labelled_beside(size, defaults, labels - held, samples)
    augment = settings.augment or _augmentation(data, inputs.flip)
    if augment not in WEAK:
        raise ValueError(f"augment must be one of {', '.join(WEAK)} for method {name}, got {augment!r}")
    few = len(data.x_train) < IMAGES_PER_PIXEL * data.x_train[0].numel()
    shortcuts = settings.part_of("method_options")
    values |= {
        "task": "semi-supervised",
        "batch_size": size,
        "method": name,
        "method_options": resolve_options(text, defaults, labels - held, samples, recipe, shortcuts),
        "augment": augment,
        "normalisation": "channel" if inputs.normalisation == "zca" and few else inputs.normalisation,
        "unlabelled": unlabelled,
        "labelled_per_batch": per_batch,
        "train_images": samples,
        "steps_per_epoch": samples // size,
        "warm_up_steps": warm_up_steps(settings.warm_up, recipe, samples // size),
    }
    config = SemiConfig(**values)
    try:
        split_data(config, data)
    except ValueError as error:
        raise ValueError(f"labels={config.labels} does not fit {data.name}: {error}") from error
    return config


def _augmentation(data: DataSet, flip: bool) -> str:
    if default_augmentation(data, large=False) == "none":
        return "none"
    return "translate-flip" if flip else "translate"


def _images(settings: SemiSettings, name: str, total: int) -> tuple[int, int, int]:
    """How many images have labels, how many are used without, and how many of the labelled ones are held out."""
    if settings.labels is None:
        raise ValueError(f"labels must say how many images keep their label for method {name}, got none")
    left = check_held_out(settings.held_out, total)
    if not 0 < settings.labels < left:
        raise ValueError(
            f"labels must be from 1 to {left - 1} for method {name}, fewer than the {left} images not held "
            f"out, got {settings.labels}"
        )
    share = settings.held_out_labels or 0.0
    if not 0 <= share < 1:
        raise ValueError(f"held_out_labels must be a share from 0 to below 1, got {share}")
    if share and settings.held_out:
        raise ValueError("held_out and held_out_labels must not be given together: a run is evaluated on one of them")
    held = round(settings.labels * share)
    if share and not 0 < held < settings.labels:
        raise ValueError(f"held_out_labels must hold out some of labels={settings.labels} and not all, got {share}")
    rest = left - settings.labels
    unlabelled = rest if settings.unlabelled is AUTO else settings.unlabelled
    if not 0 < unlabelled <= rest:
        raise ValueError(f"unlabelled must be from 1 to {rest}, the images left without a label, got {unlabelled}")
    return settings.labels, unlabelled, held


class SemiSupervisedJob(ImageJob):
    """Labelled images beside unlabelled ones.

    All images are normalised once: whitening them anew in each evaluation would take longer than the network.
    """

    config: SemiConfig

    def __init__(
        self, config: SemiConfig, data: DataSet, network: Network, method: SemiMethod, context: RunContext
    ) -> None:
        processes = context.processes
        self.whiten = whitening_for(config, data, context.folder, processes, context.data_root)
        normalise = normaliser_for(config, self.whiten)
        split = split_data(config, data)
        images, labels, indices = split.evaluation
        selected = expect_type(images[indices], Tensor)
        ready = normalised(selected, normalise, processes.device)
        evaluation = EvaluationImages(ready, labels[indices], torch.arange(len(indices)))
        super().__init__(config, network, method, context, evaluation, Compose(), originals=split.evaluation)
        self.source = semi_batches(
            config,
            data,
            split,
            defaults_for(config.method.removesuffix(ISDA_SUFFIX), data.name),
            normalise,
            processes,
            needs_unlabelled=method.objective.needs_unlabelled,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[SemiBatch]:
        """Both halves of each batch."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)

    def keep(self, folder: Path) -> None:
        """The whitening: the run can then be used without the training data, and resumed to the bit."""
        if self.whiten is not None and not (folder / WHITENING_FILE).exists():
            self.whiten.save(folder / WHITENING_FILE, self.config.data_digest)


HELD_OUT_LABELS = 0.25
"""The share of the labelled images by which the paper chooses settings."""


class SemiSupervisedClassification(Classification):
    """Images of which few have labels."""

    name = "semi-supervised"
    settings_type: ClassVar[type[RunSettings]] = SemiSettings
    config_type: ClassVar[type[RunConfig]] = SemiConfig

    def methods(self) -> Sequence[str]:
        """The paper's, each with ISDA and without."""
        return NAMES

    def resolve(self, settings: ClassificationSettings, data: DataSet) -> SemiConfig:
        """See `isda.lab.tasks.semi_supervised.task`."""
        if not isinstance(settings, SemiSettings):
            raise ValueError(
                f"settings must be isda.lab.train.SemiSettings for method {settings.method}, "
                f"got {type(settings).__name__}"
            )
        return resolve(settings, data)

    def start(self, config: ClassificationConfig, data: DataSet, context: RunContext) -> Job:
        """The run, before its first step."""
        config = expect_type(config, SemiConfig)
        network = self.network_for(config, context)
        method = create_method(config, network)
        method.to(context.processes.device)
        return SemiSupervisedJob(config, data, network, method, context)

    def training(self, config: ClassificationConfig, data: DataSet) -> Tensor:
        """(N,) the training images that a run has learnt from with their labels."""
        return split_data(expect_type(config, SemiConfig), data).labelled

    def evaluation(self, config: ClassificationConfig, data: DataSet) -> EvaluationImages:
        """The images that a run is evaluated on."""
        return split_data(expect_type(config, SemiConfig), data).evaluation

    def evaluation_pipeline(self, config: ClassificationConfig, folder: Path) -> Compose:
        """The run's own normalisation; a whitening is kept in its folder."""
        config = expect_type(config, SemiConfig)
        whiten = None
        if config.normalisation == "zca":
            whiten = ZCAWhitening.read(folder / WHITENING_FILE, config.data_digest)
        return Compose(normaliser_for(config, whiten))

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return {
            name: kind
            for declared in declared_options(split_method(method)[0])
            for name, kind in option_types(declared).items()
        }

    def grid(self, settings: ClassificationSettings, data: DataSet) -> dict[str, tuple[Any, ...]]:
        """The paper's for lambda_0 and eta_1; ours for eta_2, around what the method's publication has."""
        resolved = self.resolve(settings, data)
        return tuning_grid(resolved.method, resolved.method_options, choose_network(settings, data)[1])

    def held_out(self, settings: ClassificationSettings, data: DataSet) -> HeldOut:
        """25% of the labelled images, or what the user says."""
        settings = expect_type(settings, SemiSettings)
        if settings.held_out:
            return super().held_out(settings, data)
        share = settings.held_out_labels or HELD_OUT_LABELS
        description = f"{share:.0%} of {settings.labels} labelled images"
        return HeldOut(replace(settings, held_out_labels=share), replace(settings, held_out_labels=AUTO), description)
