"""Detection as a task of the engine: method, resolving, and the job of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isda import __version__
from isda.lab.choices import check_choice
from isda.lab.data.coco import CocoData, load
from isda.lab.engine.checkpoint import State
from isda.lab.engine.config import RunConfig
from isda.lab.engine.method import NamedMethod, Outcome, find_method_class
from isda.lab.engine.options import split_method
from isda.lab.engine.settings import AUTO, RunSettings, fit_batch_size, warm_up_steps
from isda.lab.engine.task import Job, RunContext, Task
from isda.lab.engine.trainer import Trainer
from isda.lab.networks.detection import Detector, has_masks, names
from isda.lab.networks.timm_models import TIMM_PREFIX
from isda.lab.tasks.common.evaluation import CURVES
from isda.lab.tasks.common.pictures import save_picture
from isda.lab.tasks.detection.backbone import DetectionBackbone, create_detector, find_backbone, initialise
from isda.lab.tasks.detection.data import DetectionBatch, DetectionBatches, evaluation_images
from isda.lab.tasks.detection.evaluation import (
    EVALUATED_ON,
    PICTURE_COUNT,
    DetectionScores,
    coco_scores,
    detect,
    detection_records,
    draw_beside_truth,
    figures_for,
)
from isda.lab.tasks.detection.settings import RECIPE, DetectionConfig, DetectionSettings, default_warm_up_steps


class DetectionMethod(NamedMethod):
    """A method of detection, made with an instance of its Options, a `Detector` and a `DetectionConfig`."""


@dataclass(frozen=True, kw_only=True)
class MultiTaskOptions:
    """What may follow ``multi-task:``; the runs of one comparison can differ in what they start from."""

    backbone: str | None = None
    """As the setting of the same name, which it replaces."""
    backbone_weights: str | None = None
    """As the setting of the same name, which it replaces."""


class MultiTask(DetectionMethod):
    """The multi-task loss of the R-CNN family (Girshick, 2015; Ren et al., 2015): a plain sum of all terms."""

    name = "multi-task"
    Options = MultiTaskOptions

    def __init__(self, options: MultiTaskOptions, network: Detector, config: DetectionConfig) -> None:
        super().__init__()

    def forward(self, network: nn.Module, batch: DetectionBatch) -> Outcome:
        """The detector's own terms."""
        losses = network(batch.images, batch.targets)
        return Outcome({name.removeprefix("loss_"): loss for name, loss in losses.items()}, None)


METHODS: dict[str, type[DetectionMethod]] = {MultiTask.name: MultiTask}


def resolve(settings: DetectionSettings, data: CocoData) -> DetectionConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set.
    """
    network = check_choice("network", settings.network or "faster-rcnn", names())
    if has_masks(network) and not (data.train.has_masks and data.validation.has_masks):
        raise ValueError(f"network {network} needs the masks of all objects, {data.name} does not have them")
    recipe = settings.shortened(RECIPE)
    given, images = settings.batch_size is not AUTO, len(data.train.marked)
    size = settings.batch_size if given else recipe["batch_size"]
    size = fit_batch_size(size, images, given, "training images with objects")
    # In proportion to the images of a step (Goyal et al., 2017).
    recipe |= {"lr": recipe["lr"] * size / recipe["batch_size"]}
    name, words = split_method(settings.method or "multi-task")
    method: type[DetectionMethod] = find_method_class(name, METHODS, DetectionMethod)  # type: ignore[type-abstract]
    options = {key: value for key, value in method.resolve(words, recipe).items() if value is not None}
    values = settings.resolved(recipe)
    backbone = _backbone(settings, options)
    steps_per_epoch = images // size
    warm_up = default_warm_up_steps(steps_per_epoch * recipe["epochs"])
    # Nothing is frozen where weights are random; not all of timm's networks run their layers one after the other.
    batch_norm = "frozen" if backbone.weights else "trained"
    frozen_stages = int(bool(backbone.weights) and not backbone.network.startswith(TIMM_PREFIX))
    values["settings"] |= {"data": data.source}
    values |= {
        "task": "detection",
        "batch_size": size,
        "data": data.name,
        "network": network,
        "method": name,
        "method_options": options,
        "steps_per_epoch": steps_per_epoch,
        "warm_up_steps": warm_up_steps(settings.warm_up or f"{warm_up}steps", recipe, steps_per_epoch),
        "evaluated_on": EVALUATED_ON,
        "figures": figures_for(has_masks(network)),
        "curves": CURVES[:1],
        "classes": data.classes,
        "category_ids": tuple(data.train.categories),
        "backbone": backbone.network,
        "backbone_options": backbone.options,
        "backbone_weights": backbone.weights,
        "backbone_digest": backbone.digest,
        "batch_norm": batch_norm if settings.batch_norm is AUTO else settings.batch_norm,
        "frozen_stages": frozen_stages if settings.frozen_stages is AUTO else settings.frozen_stages,
        "mean": backbone.mean,
        "std": backbone.std,
        "train_images": images,
        "test_images": len(data.validation),
        "data_digest": data.digest,
        "version": __version__,
    }
    return DetectionConfig(**values)


def _backbone(settings: DetectionSettings, options: dict[str, Any]) -> DetectionBackbone:
    """The one that the method names, or else the settings."""
    for name in ("backbone", "backbone_weights"):
        if name in settings.given() and name in options:
            raise ValueError(f"{name} must be said by the settings or by the method, got it twice")
    weights = options.get("backbone_weights", settings.backbone_weights)
    return find_backbone(options.get("backbone", settings.backbone) or "resnet-50", settings.backbone_options, weights)


class DetectionJob(Trainer):
    """Images with boxes and masks.

    Args:
        config: of the run.
        data: the images.
        network: on its device.
        method: made for it.
        context: where it runs.
    """

    config: DetectionConfig
    network: Detector

    def __init__(
        self, config: DetectionConfig, data: CocoData, network: Detector, method: DetectionMethod, context: RunContext
    ) -> None:
        super().__init__(config, network, method, context.processes)
        self.context, self.evaluation_part, self.masks = context, data.validation, has_masks(config.network)
        self.source = DetectionBatches(
            part=data.train,
            masks=self.masks,
            batch_size=config.batch_size,
            seed=config.seed,
            rank=context.processes.rank,
            world=context.processes.world,
            workers=context.workers,
        )
        self._last: DetectionScores | None = None

    def batches(self, epoch: int, start: int = 0) -> Iterator[DetectionBatch]:
        """Images with their objects."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.processes.device, self.config.dtype)

    def samples(self, batch: DetectionBatch) -> int:
        """The images of this process."""
        return len(batch.images)

    def measured(self, outputs: None, batch: DetectionBatch) -> dict[str, Tensor]:
        """Nothing beside the loss terms."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """COCO's figures."""
        self._last = self._score()
        return self._last.figures

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made."""
        super().restore(state)
        self._last = None

    def conclude(self, folder: Path) -> dict[str, Any]:
        """AP per class; pictures of what was found in a few images beside what is there."""
        scores = self._last or self._score()
        if self.processes.first:
            marked = self.evaluation_part.marked
            chosen = torch.tensor(marked[:: max(1, len(marked) // PICTURE_COUNT)][:PICTURE_COUNT])
            images = evaluation_images(self.evaluation_part, chosen, self.context.workers)
            for position, found in detect(self.evaluated, images, self.processes.device):
                picture = draw_beside_truth(self.evaluation_part, position, found, self.masks, self.config.classes)
                save_picture(picture, folder / "pictures" / f"image-{self.evaluation_part.images[position].id}.png")
        self.processes.wait()
        return {"per_class": scores.per_class}

    def _score(self) -> DetectionScores:
        mine = torch.arange(len(self.evaluation_part)).tensor_split(self.processes.world)[self.processes.rank]
        ids, device = self.config.category_ids, self.processes.device
        records = detection_records(self.evaluated, self.evaluation_part, mine, ids, device, self.context.workers)
        return coco_scores(self.evaluation_part, self.processes.gather(records), masks=self.masks)


class Detection(Task):
    """Images with boxes and masks of objects."""

    name = "detection"
    settings_type: ClassVar[type[RunSettings]] = DetectionSettings
    config_type: ClassVar[type[RunConfig]] = DetectionConfig

    def methods(self) -> Sequence[str]:
        """What can be minimised."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> CocoData:
        """A folder in COCO's format; that of the name coco by default."""
        return load(data or "coco", root)

    def resolve(self, settings: DetectionSettings, data: CocoData) -> DetectionConfig:
        """See `isda.lab.tasks.detection.task`."""
        return resolve(settings, data)

    def start(self, config: DetectionConfig, data: CocoData, context: RunContext) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, context)
        kind = find_method_class(config.method, METHODS, DetectionMethod)  # type: ignore[type-abstract]
        method = kind.create(network, config)
        return DetectionJob(config, data, network, method.to(context.processes.device), context)

    def network_for(self, config: DetectionConfig, context: RunContext) -> Detector:
        """The network of a configuration with its initial weights, on its device."""
        torch.manual_seed(config.seed)
        network = create_detector(config)
        initialise(network, config)
        network.to(device=context.processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        return network
