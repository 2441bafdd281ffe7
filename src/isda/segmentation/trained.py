"""A trained segmentation network from its run folder, and what it says about images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from isda.data.image_files import read_image
from isda.data.segmentation import IGNORED, SegmentationData
from isda.engine.folder.finished import check_task, finished_run, load_weights, made_as_described
from isda.engine.processes import Processes
from isda.networks.segmentation import SegmentationNetwork
from isda.segmentation.batches import Batch, evaluation_batches
from isda.segmentation.config import Config
from isda.segmentation.drawing import prepared
from isda.segmentation.evaluation import count
from isda.segmentation.foreseeing import create_network
from isda.segmentation.inference import predictor, probabilities
from isda.segmentation.metrics import ConfusionMatrix
from isda.segmentation.resolving import check_counted

__all__ = ["Trained", "Way", "load_trained"]


@dataclass(frozen=True)
class Way:
    """How images are labelled; see `isda.segmentation.inference`."""

    scales: tuple[float, ...] = (1.0,)
    """Factors on the size of the image, whose predictions are averaged."""
    flip: bool = False
    """Whether the mirrored image is averaged in."""
    crop: tuple[int, int] | None = None
    """Height and width of sliding windows; None for whole images."""


@dataclass(frozen=True)
class Trained:
    """A network with its final weights, in eval mode, and the configuration it was trained with."""

    config: Config
    network: SegmentationNetwork

    def measure(
        self, data: SegmentationData, part: str, processes: Processes, way: Way | None = None
    ) -> ConfusionMatrix:
        """The confusion matrix of a part of a data set, over all processes together.

        Args:
            data: the run's data set, or another one with the same classes, in any order.
            part: "train", "validation" or "test"; it must have labels.
            processes: who measures.
            way: how images are labelled; as a whole at their own size by default.

        Raises:
            ValueError: the classes differ, or the part has no labels, or all of them are ignored.
        """
        config, images = self.config, data.part(part)
        label_of = _labels_by_name(data, config.classes)
        if not images.labelled:
            raise ValueError(f"part must be one with labels, got {part}, of which {data.name} has none")
        check_counted(data, part)
        mine = torch.arange(len(images)).tensor_split(processes.world)[processes.rank]
        batches = (
            Batch(batch.images, label_of.to(batch.targets.device)[batch.targets], batch.indices)
            for batch in evaluation_batches(images, mine, config, processes.device)
        )
        return count(
            self.network.to(processes.device),
            batches,
            len(config.classes),
            processes,
            channels_last=config.channels_last,
            way=partial(predictor, **asdict(way or Way())),
        )

    def label(self, path: Path, way: Way | None = None) -> tuple[Tensor, Tensor]:
        """The uint8 (3, H, W) pixels of an image file, and the (H, W) classes that the network sees in it."""
        image = read_image(path)
        seen = probabilities(self.network, prepared(image, self.network, self.config), **asdict(way or Way()))
        return image, seen.argmax(0).cpu()


def _labels_by_name(data: SegmentationData, classes: Sequence[str]) -> Tensor:
    """(256,) for each class of a data set the class that a network has for its name; 255 stays 255."""
    if sorted(data.classes) != sorted(classes):
        differing = sorted(set(data.classes) ^ set(classes)) or list(data.classes)
        raise ValueError(
            f"data must have the {len(classes)} classes of the run; those of {data.name} differ in "
            f"{', '.join(map(repr, differing[:5]))}"
        )
    table = torch.full((256,), IGNORED, dtype=torch.int64)
    table[: len(classes)] = torch.tensor([list(classes).index(name) for name in data.classes])
    return table


def load_trained(folder: Path) -> Trained:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    run, stored = finished_run(folder)
    check_task(run, stored, "segmentation", "a segmentation network")
    config = Config.from_stored(stored, run.config_file)
    with made_as_described(run):
        network = create_network(config).to(config.dtype)
    load_weights(run, network, config.network)
    return Trained(config, network.eval())
