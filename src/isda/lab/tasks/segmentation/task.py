"""Segmentation as a task of the engine: resolving, and the job of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from isda import __version__
from isda.lab.choices import check_choice
from isda.lab.data.segmentation import IGNORED, TOOLBOX_STATISTICS, SegmentationData, load
from isda.lab.engine.checkpoint import State
from isda.lab.engine.config import RunConfig
from isda.lab.engine.options import option_types, split_method
from isda.lab.engine.settings import AUTO, RunSettings, fit_batch_size, warm_up_steps
from isda.lab.engine.task import HeldOut, Job, RunContext, Task
from isda.lab.engine.trainer import Trainer
from isda.lab.networks import segmentation as networks
from isda.lab.networks.segmentation import SegmentationNetwork, freeze_batch_norm
from isda.lab.networks.sync_batch_norm import synchronise_batch_norm
from isda.lab.tasks.common.evaluation import CURVES
from isda.lab.tasks.segmentation.data import SegmentationBatch, SegmentationBatches, evaluation_batches
from isda.lab.tasks.segmentation.evaluation import (
    BASELINES,
    SCALES,
    ConfusionMatrix,
    confusion_metrics,
    count_confusion,
    figures_for,
    predictor,
)
from isda.lab.tasks.segmentation.methods import METHODS, SegmentationMethod, find_method
from isda.lab.tasks.segmentation.pictures import draw_predictions
from isda.lab.tasks.segmentation.settings import BATCH_SIZE, SegmentationConfig, SegmentationSettings, recipe_for


def create_network(config: SegmentationConfig, pretrained: str | None = None) -> SegmentationNetwork:
    """The network that a configuration names, with random weights but for those of a pretrained backbone."""
    network = networks.create(config.network, len(config.classes), pretrained=pretrained, **config.network_options)
    return freeze_batch_norm(network) if config.freeze_batch_norm else network


def resolve(settings: SegmentationSettings, data: SegmentationData) -> SegmentationConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set; or a file of the data
            set that is wrong.
    """
    images = len(data.train)
    given = settings.batch_size is not AUTO
    size = fit_batch_size(settings.batch_size if given else BATCH_SIZE, images, given)
    steps_per_epoch = images // size
    recipe = settings.shortened(recipe_for(steps_per_epoch))
    name, words = split_method(settings.method or "isda")
    method = find_method(name)
    evaluated_on = evaluation_part(data, settings.evaluate_on)
    data.check(("train", evaluated_on))
    for part in ("train", evaluated_on):
        check_labelled_pixels(data, part)
    values = settings.resolved(recipe)
    if "data" in values["settings"] and Path(settings.data).expanduser().is_dir():
        # A relative path is found again from wherever the run is taken up.
        values["settings"] |= {"data": data.source}
    stem = ("torchvision" if settings.pretrained else "deep") if settings.stem is AUTO else settings.stem
    statistics = TOOLBOX_STATISTICS if stem == "deep" and settings.pretrained else data.statistics
    values |= {
        "task": "segmentation",
        "batch_size": size,
        "data": data.name,
        "data_digest": data.digest,
        "network": check_choice("network", values["network"], networks.names()),
        "stem": stem,
        "method": name,
        "method_options": method.resolve(words, recipe, settings.part_of("method_options")),
        "steps_per_epoch": steps_per_epoch,
        "warm_up_steps": warm_up_steps(settings.warm_up, recipe, steps_per_epoch),
        "evaluated_on": evaluated_on,
        "figures": figures_for(evaluated_on, settings.multi_scale),
        "curves": CURVES,
        "baselines": BASELINES,
        "classes": data.classes,
        "colours": data.colours,
        "mean": statistics.mean,
        "std": statistics.std,
        "train_images": images,
        "test_images": len(data.part(evaluated_on)),
        "version": __version__,
    }
    config = SegmentationConfig(**values)
    if config.pretrained not in (None, "torchvision") and not Path(config.pretrained).is_file():
        raise ValueError(f"pretrained must be torchvision or a file of weights, got {config.pretrained!r}")
    return config


def evaluation_part(data: SegmentationData, evaluate_on: str | None) -> str:
    """The part that judges: the given one, else validation, else test; it must have labels."""
    name = evaluate_on or ("validation" if data.validation.labelled else "test")
    part = data.part(check_choice("evaluate_on", name, ("validation", "test")))
    if not part.labelled:
        missing = "no labels" if part.pairs else "no images"
        raise ValueError(f"evaluate_on must name a part with labels, got {name}, of which {data.name} has {missing}")
    return name


def check_labelled_pixels(data: SegmentationData, name: str) -> None:
    """Raise a ValueError if a part with labels has no pixel of any class; most often one image is looked at."""
    part = data.part(name)
    if not any(bool((part[index][1] != IGNORED).any()) for index in range(len(part))):
        raise ValueError(
            f"the {name} part of {data.name} must have pixels of at least one class, got {len(part)} images with "
            "ignored labels only"
        )


PICTURES_FOLDER = "pictures"
"""The folder, within the run's, of what the finished network makes of a few images."""
PICTURE_COUNT = 4


class SegmentationJob(Trainer):
    """Images with labelled pixels.

    Args:
        config: of the run.
        data: the images.
        network: on its device.
        method: made for it.
        context: where it runs.
    """

    config: SegmentationConfig
    network: SegmentationNetwork

    def __init__(
        self,
        config: SegmentationConfig,
        data: SegmentationData,
        network: SegmentationNetwork,
        method: SegmentationMethod,
        context: RunContext,
    ) -> None:
        super().__init__(config, network, method, context.processes)
        self.context, self.evaluation_part = context, data.part(config.evaluated_on)
        processes = context.processes
        self.source = SegmentationBatches(
            data.train, config, processes.rank, processes.world, processes.device, context.workers
        )
        self._last: ConfusionMatrix | None = None

    def batches(self, epoch: int, start: int = 0) -> Iterator[SegmentationBatch]:
        """Augmented crops with their labels."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)

    def samples(self, batch: SegmentationBatch) -> float:
        """An equal share of every process: methods divide by the pixels of all processes together."""
        return self.config.batch_size / self.processes.world

    def measured(self, outputs: Tensor, batch: SegmentationBatch) -> dict[str, Tensor]:
        """The share of right pixels in the crops, in percent, at the resolution of the logits."""
        labels = batch.targets.unsqueeze(1).float()
        targets = F.interpolate(labels, outputs.shape[2:], mode="nearest").squeeze(1).long()
        counted = targets != IGNORED
        right = ((outputs.argmax(1) == targets) & counted).double().sum() / counted.sum().clamp(min=1)
        return {"accuracy": 100 * self.samples(batch) * right}

    def evaluate(self) -> dict[str, float]:
        """Mean intersection over union and pixel accuracy of images at their own size, whole or by windows."""
        self._last = self._count(crop=self.config.window_size)
        return confusion_metrics(self._last)

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made."""
        super().restore(state)
        self._last = None

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Figures per class, and at several scales if configured; pictures of a few images."""
        confusion = self._last or self._count(crop=self.config.window_size)
        result: dict[str, Any] = {"per_class": {"iou": confusion.iou_by_name(self.config.classes)}}
        if self.config.multi_scale:
            for name, flip in (("miou_multi_scale", False), ("miou_multi_scale_flip", True)):
                result[name] = confusion_metrics(self._count(scales=SCALES, flip=flip))["miou"]
        if self.processes.first:
            chosen = sorted({i * len(self.evaluation_part) // PICTURE_COUNT for i in range(PICTURE_COUNT)})
            draw_predictions(self.evaluated, self.evaluation_part, chosen, self.config, folder / PICTURES_FOLDER)
        self.processes.wait()
        return result

    def _count(self, **inference: Any) -> ConfusionMatrix:
        config, processes = self.config, self.processes
        mine = torch.arange(len(self.evaluation_part)).tensor_split(processes.world)[processes.rank]
        return count_confusion(
            self.evaluated,
            evaluation_batches(self.evaluation_part, mine, config, processes.device, self.context.workers),
            len(config.classes),
            processes,
            channels_last=config.channels_last,
            make_predictor=partial(predictor, logits=config.window is not None, **inference),
        )


class Segmentation(Task):
    """Images whose every pixel has a class."""

    name = "segmentation"
    settings_type: ClassVar[type[RunSettings]] = SegmentationSettings
    config_type: ClassVar[type[RunConfig]] = SegmentationConfig
    class_options = ("covariance",)

    def methods(self) -> Sequence[str]:
        """Cross-entropy, and ISDA with either bound."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> SegmentationData:
        """The data set of a name or a folder."""
        if data is None:
            raise ValueError("data must be cityscapes, camvid or a folder of images and label PNGs, got nothing")
        return load(data, root)

    def resolve(self, settings: SegmentationSettings, data: SegmentationData) -> SegmentationConfig:
        """See `isda.lab.tasks.segmentation.task`."""
        return resolve(settings, data)

    def start(self, config: SegmentationConfig, data: SegmentationData, context: RunContext) -> Job:
        """The run, before its first step."""
        processes = context.processes
        torch.manual_seed(config.seed)
        network = create_network(config, config.pretrained)
        if config.sync_batch_norm and processes.world > 1:
            synchronise_batch_norm(network, processes.device)
        network.to(device=processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        method = find_method(config.method).create(network, config)
        method.to(processes.device)
        return SegmentationJob(config, data, network, method, context)

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return option_types(find_method(split_method(method)[0]).Options)

    def grid(self, settings: SegmentationSettings, data: SegmentationData) -> dict[str, tuple[Any, ...]]:
        """What the method declares."""
        return find_method(split_method(settings.method or "isda")[0]).grid_for(recipe_for(1))

    def held_out(self, settings: SegmentationSettings, data: SegmentationData) -> HeldOut:
        """The validation part; the final runs are evaluated on the test part if it has labels."""
        if not data.validation.labelled:
            raise ValueError(f"settings are chosen by a validation part with labels, which {data.name} does not have")
        final_part = settings.evaluate_on or ("test" if data.part("test").labelled else "validation")
        description = f"the {len(data.validation):,} images of the validation part"
        if final_part == "validation":
            description += ", on which the final runs are evaluated too: their figures are slightly optimistic"
        return HeldOut(
            replace(settings, evaluate_on="validation"), replace(settings, evaluate_on=final_part), description
        )
