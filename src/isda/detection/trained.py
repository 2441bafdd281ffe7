"""A trained detector from its run folder, and what it finds in images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isda.data.coco import CocoData
from isda.data.image_files import read_image
from isda.detection.batches import evaluation_images
from isda.detection.config import Config
from isda.detection.evaluation import Scores, detect, records_of, score
from isda.detection.initialising import create_detector
from isda.engine.folder.finished import check_task, finished_run, load_weights, made_as_described
from isda.networks.detection import Detector, has_masks

__all__ = ["TrainedDetector", "load_detector"]


@dataclass(frozen=True)
class TrainedDetector:
    """A detector with its final weights, in eval mode, and the configuration it was trained with."""

    config: Config
    network: Detector

    def measure(self, data: CocoData, device: torch.device, workers: int = 4) -> Scores:
        """COCO's figures on the validation images of the run's data set, or of another with the same categories.

        Raises:
            ValueError: the categories differ.
        """
        part = data.validation
        mine = dict(zip(self.config.category_ids, self.config.classes, strict=True))
        if part.categories != mine:
            raise ValueError(f"data must have the {len(mine)} categories of the run, ids and names alike: {data.name}")
        images = evaluation_images(part, torch.arange(len(part)), workers)
        records = [
            record
            for position, found in detect(self.network.to(device), images, device)
            for record in records_of(found, part.images[position].id, self.config.category_ids)
        ]
        return score(part, records, masks=has_masks(self.config.network))

    def find(self, paths: Sequence[Path], device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Each image (3, H, W) of the files, and what is found in it."""
        images = [read_image(path) for path in paths]
        for path, image in zip(paths, images, strict=True):
            try:
                self.network.transform.resized(*image.shape[1:])
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        numbered: Iterable[tuple[int, Tensor]] = enumerate(images)
        for number, found in detect(self.network.to(device), numbered, device):
            yield images[number], found


def load_detector(folder: Path) -> TrainedDetector:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    run, stored = finished_run(folder)
    check_task(run, stored, "detection", "a detector")
    config = Config.from_stored(stored, run.config_file)
    with made_as_described(run):
        network = create_detector(config).to(config.dtype)
    load_weights(run, network, config.network)
    return TrainedDetector(config, network.eval())
