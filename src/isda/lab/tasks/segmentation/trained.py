"""Load a trained segmentation network from its run folder, evaluate it and predict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from isda.lab.data.image_files import read_image
from isda.lab.data.segmentation import IGNORED, SegmentationData
from isda.lab.engine.processes import Processes
from isda.lab.networks.segmentation import SegmentationNetwork
from isda.lab.tasks.common.trained import label_map, open_run
from isda.lab.tasks.segmentation.data import SegmentationBatch, evaluation_batches
from isda.lab.tasks.segmentation.evaluation import ConfusionMatrix, count_confusion, predictor, probabilities
from isda.lab.tasks.segmentation.pictures import prepare_image
from isda.lab.tasks.segmentation.settings import SegmentationConfig
from isda.lab.tasks.segmentation.task import check_labelled_pixels, create_network


@dataclass(frozen=True)
class InferenceOptions:
    """How images are predicted; see `isda.lab.tasks.segmentation.evaluation`."""

    scales: tuple[float, ...] = (1.0,)
    """Factors on the size of the image, whose predictions are averaged."""
    flip: bool = False
    """Whether the mirrored image is averaged in."""
    crop: tuple[int, int] | None = None
    """Height and width of sliding windows; None for whole images."""


@dataclass(frozen=True)
class TrainedSegmenter:
    """A network with its final weights, in eval mode, and the configuration it was trained with."""

    config: SegmentationConfig
    network: SegmentationNetwork

    def measure(
        self, data: SegmentationData, part: str, processes: Processes, inference: InferenceOptions | None = None
    ) -> ConfusionMatrix:
        """The confusion matrix of a part of a data set, over all processes together.

        Args:
            data: the run's data set, or another one with the same classes, in any order.
            part: "train", "validation" or "test"; it must have labels.
            processes: that evaluate together.
            inference: by default whole images at their own size.

        Raises:
            ValueError: the classes differ, or the part has no labels, or all of them are ignored.
        """
        config, images = self.config, data.part(part)
        # 255 stays 255.
        label_of = torch.full((256,), IGNORED, dtype=torch.int64)
        label_of[: len(config.classes)] = label_map(data.name, data.classes, config.classes)
        if not images.labelled:
            raise ValueError(f"part must be one with labels, got {part}, of which {data.name} has none")
        check_labelled_pixels(data, part)
        mine = torch.arange(len(images)).tensor_split(processes.world)[processes.rank]
        batches = (
            SegmentationBatch(batch.images, label_of.to(batch.targets.device)[batch.targets], batch.indices)
            for batch in evaluation_batches(images, mine, config, processes.device)
        )
        return count_confusion(
            self.network.to(processes.device),
            batches,
            len(config.classes),
            processes,
            channels_last=config.channels_last,
            make_predictor=partial(predictor, **asdict(inference or InferenceOptions())),
        )

    def label(self, path: Path, inference: InferenceOptions | None = None) -> tuple[Tensor, Tensor]:
        """The uint8 (3, H, W) pixels of an image file, and the (H, W) classes that the network predicts."""
        image = read_image(path)
        inputs = prepare_image(image, self.network, self.config)
        predicted = probabilities(self.network, inputs, **asdict(inference or InferenceOptions()))
        return image, predicted.argmax(0).cpu()


def load_segmenter(folder: Path) -> TrainedSegmenter:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    return TrainedSegmenter(
        *open_run(folder, "segmentation", "a segmentation network", SegmentationConfig, create_network)
    )
