"""A trained network from its run folder, and what it says about images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from isda import networks
from isda.data import DataSet
from isda.data.augment import Compose
from isda.data.image_files import read_image
from isda.train.batches import evaluation_batches
from isda.train.config import Config
from isda.train.evaluation import evaluate
from isda.train.normalisation import WHITENING_FILE, Whiten, normaliser_for
from isda.train.pipelines import evaluation_pipeline
from isda.train.processes import Processes
from isda.train.run_folder import RunFolder
from isda.train.split import split_data

__all__ = ["Trained", "load_trained"]


@dataclass(frozen=True)
class Trained:
    """A network with its final weights, in eval mode, and the configuration it was trained with."""

    config: Config
    network: networks.Network
    whiten: Whiten | None = None
    """What the run whitened its images with, if it did."""

    def measure(self, data: DataSet, device: torch.device) -> dict[str, float]:
        """Error, likelihood and calibration on the images that the run was judged by."""
        if data.num_classes != len(self.config.classes):
            raise ValueError(
                f"data must have {len(self.config.classes)} classes, got {data.num_classes} in {data.name}"
            )
        config = self.config
        split = split_data(config, data)
        pipeline = self._pipeline()
        network = self.network.to(device)
        batches = evaluation_batches(split.images, split.labels.to(device), split.evaluation, pipeline, device)
        return evaluate(network, batches, data.num_classes, Processes(0, 1, device), config.channels_last)

    @torch.no_grad()
    def probabilities(self, paths: Sequence[Path]) -> Tensor:
        """(N, C) class probabilities of image files, each resized to the size that the network was trained on."""
        config = self.config
        pipeline = self._pipeline()
        rows = []
        for path in paths:
            image = read_image(path, config.channels)
            if config.image_size is not None:
                image = _fit(image, config.image_size)
            pixels = pipeline(image.unsqueeze(0)).to(next(self.network.parameters()).dtype)
            rows.append(self.network(pixels).float().softmax(1))
        return torch.cat(rows)

    def _pipeline(self) -> Compose:
        config = self.config
        return evaluation_pipeline(config.augment, config.mean, config.std, normaliser_for(config, self.whiten))


def _fit(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The whole image at another size, as the images of small data sets were made."""
    from torchvision.transforms.v2.functional import resize

    resized: Tensor = image if image.shape[1:] == size else resize(image, list(size), antialias=True)
    return resized


def load_trained(folder: Path) -> Trained:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, or damaged weights.
    """
    run = RunFolder(folder)
    if not run.started:
        raise ValueError(f"no run in {folder}: a run folder holds config.json")
    if not run.finished:
        raise ValueError(f"the run in {folder} is not finished; go on with `isda train --out {folder} --resume`")
    config = Config.read(run.config_file)
    network = networks.create(config.network, num_classes=len(config.classes), **config.network_options)
    try:
        weights = load_file(run.weights_file)
        network.to(torch.float64 if config.precision == "float64" else torch.float32).load_state_dict(weights)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{run.weights_file} does not hold the weights of {config.network}: {error}") from error
    whiten = Whiten.read(run.path / WHITENING_FILE) if config.normalisation == "zca" else None
    return Trained(config, network.eval(), whiten)
