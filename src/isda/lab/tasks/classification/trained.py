"""Load a trained classifier from its run folder, evaluate it and predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.lab.choices import expect_type
from isda.lab.data import DataSet
from isda.lab.data.augment import Compose
from isda.lab.data.image_files import read_image
from isda.lab.engine.processes import Processes
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import config_errors, open_finished_run
from isda.lab.engine.task import find_task, task_names
from isda.lab.networks import Network
from isda.lab.networks.export import export_onnx
from isda.lab.tasks.classification.pretrained import create_network
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.classification.task import Classification
from isda.lab.tasks.common.data import EvaluationImages, evaluation_batches
from isda.lab.tasks.common.evaluation import evaluate
from isda.lab.tasks.common.trained import label_map, restore_network

DECODED_SIZE = 256
"""Height and width of an image that stands for those of a folder, which the pipeline resizes or crops."""


@dataclass(frozen=True)
class TrainedClassifier:
    """A network with its final weights, in eval mode, and the configuration it was trained with."""

    config: ClassificationConfig
    network: Network
    pipeline: Compose
    """From images to inputs of the network."""
    task: Classification

    def measure(self, data: DataSet, device: torch.device, *, own: bool = True) -> dict[str, float]:
        """Error, likelihood and calibration.

        Args:
            data: the run's data set, or another one with the same classes, in any order.
            device: where to compute.
            own: measure on the evaluation images of the run, such as those it held out; else on the test images.
        """
        config = self.config
        if own and config.data_digest not in ("", data.digest):
            raise ValueError(f"{data.name} must be the data set of the run, it has changed since the run was started")
        label_of = label_map(data.name, data.classes, config.classes)
        test = EvaluationImages(data.x_test, data.y_test, torch.arange(len(data.y_test)))
        images, labels, indices = self.task.evaluation(config, data) if own else test
        batches = evaluation_batches(images, label_of[labels].to(device), indices, self.pipeline, device)
        network = self.network.to(device)
        alone = Processes(0, 1, device)
        return evaluate(network, batches, data.num_classes, alone, config.channels_last)

    @torch.no_grad()
    def probabilities(self, paths: Sequence[Path]) -> Tensor:
        """(N, C) class probabilities of image files, each resized to the size that the network was trained on."""
        if self.config.channels not in (1, 3):
            raise ValueError(
                f"the network must take grey or colour images to predict image files, it takes {self.config.channels} "
                "channels; `isda evaluate --data` reads .npz files of such images"
            )
        rows = []
        for path in paths:
            image = read_image(path, self.config.channels)
            if self.config.image_size is not None:
                image = fit_size(image, self.config.image_size)
            pixels = self.pipeline(image.unsqueeze(0)).to(self.config.dtype)
            rows.append(self.network(pixels).float().softmax(1))
        return torch.cat(rows)

    def export_onnx(self, path: Path) -> None:
        """Write the network as an ONNX graph for images of the size it was trained on, see `networks.export`."""
        config = self.config
        size = config.image_size or (DECODED_SIZE, DECODED_SIZE)
        image = self.pipeline(torch.zeros(1, config.channels, *size, dtype=torch.uint8)).float()
        metadata = {
            "network": config.network,
            "classes": list(config.classes),
            "mean": list(config.mean),
            "std": list(config.std),
        }
        export_onnx(self.network.float(), image, path, metadata)


def fit_size(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The whole image at another size."""
    from torchvision.transforms.v2.functional import resize

    resized: Tensor = image if image.shape[-2:] == size else resize(image, list(size), antialias=True)
    return resized


def load_classifier(folder: Path) -> TrainedClassifier:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    run, stored = open_finished_run(folder)
    task, config = classifier_of(run, stored)
    with config_errors(run):
        pipeline = task.evaluation_pipeline(config, run.path)
    return TrainedClassifier(config, restore_network(run, config, create_network), pipeline, task)


def classifier_of(run: RunFolder, stored: Mapping[str, Any]) -> tuple[Classification, ClassificationConfig]:
    """The task and the configuration of a run of a classifier, finished or not, from the content of its config.json.

    Raises:
        ValueError: it is of another task.
    """
    name = stored.get("task")
    task = find_task(name) if name in task_names() else None
    if not isinstance(task, Classification):
        raise ValueError(f"{run.config_file} must be of a classifier of images, got the task {name!r}")
    return task, expect_type(task.config_type.from_stored(stored, run.config_file), ClassificationConfig)
