"""Features of images by a network, for `isda embed`, and measures of probabilities, for `isda classify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda import __version__
from isda.lab import networks
from isda.lab.data import DataSet
from isda.lab.data.augment import Normalize
from isda.lab.data.dataset import Images
from isda.lab.data.splits import balanced_sample
from isda.lab.files import atomic_write, file_digest
from isda.lab.networks.pretrained import HUB, load_pretrained, pretrained_inputs, pretrained_weights
from isda.lab.networks.timm_models import TIMM_PREFIX
from isda.lab.tasks.common.data import images_at
from isda.lab.tasks.transfer.features import extract_features, load_source, match_input_format

RANDOM_SEED = 0
"""Of networks without weights, and of the choice of images where not all are embedded."""
DEFAULT_SIZE = (224, 224)
CALIBRATION_BINS = 15
MIN_PROBABILITY = 1e-12
"""Lower bound of probabilities in the likelihood."""


class Backbone(NamedTuple):
    """A function that gives the features of images at indices, and where they come from."""

    features: Callable[[Images, Tensor, torch.device], Tensor]
    provenance: dict[str, Any]


def find_backbone(
    network: str,
    data: DataSet,
    pretrained: str | None = None,
    *,
    image_size: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> Backbone:
    """A network by name, or the network of a finished run.

    Args:
        network: ``timm:NAME``, a name of `isda networks`, or the folder of a run of a classifier.
        data: the images.
        pretrained: a file of weights, or "timm" for those that timm fetches; random weights by default.
        image_size: height and width that images are resized to; by default those of the pretraining, else the images'.
        mean: of pixels in 0..1, one value or one per channel; by default the pretraining's, else the data set's.
        std: likewise.
    """
    named = network.startswith(TIMM_PREFIX) or network in networks.names()
    if not named and Path(network).is_dir():
        given = {"pretrained": pretrained, "image_size": image_size, "mean": mean, "std": std}
        for option, value in given.items():
            if value:
                raise ValueError(f"{option} must not be given with the run {network}, which determines it")
        source = load_source(Path(network))

        def run_features(images: Images, indices: Tensor, device: torch.device) -> Tensor:
            return extract_features(source.trained, images, indices, device)

        kept = ("network", "method", "seed", "mean", "std", "image_size", "source_data", "source_sha256")
        return Backbone(run_features, {name: source.fields[name] for name in kept})
    from_timm = network.startswith(TIMM_PREFIX)
    channels = 3 if from_timm else data.channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)
        made = networks.create(network, num_classes=1, in_channels=channels).eval()
    weights = f"random, seed {RANDOM_SEED}"
    if pretrained is not None:
        source_name = HUB if pretrained == "timm" else pretrained
        load_pretrained(made, network, pretrained_weights(network, source_name, {}), pretrained)
        weights = (
            pretrained if pretrained == "timm" else f"{Path(pretrained).name}, sha256 {file_digest(Path(pretrained))}"
        )
    inputs = pretrained_inputs(network) if from_timm else None
    size = (image_size, image_size) if image_size else (inputs.size,) * 2 if inputs else data.image_size or DEFAULT_SIZE
    normalise = Normalize(
        per_channel("mean", mean or (inputs.mean if inputs else data.mean), channels),
        per_channel("std", std or (inputs.std if inputs else data.std), channels),
    )

    @torch.inference_mode()
    def features(images: Images, indices: Tensor, device: torch.device) -> Tensor:
        resized = cast(Tensor, match_input_format(images_at(images, indices), channels, size))
        return made.to(device).features(normalise(resized.to(device))).cpu()

    provenance = {"network": network, "weights": weights, "image_size": size}
    return Backbone(features, provenance | {"mean": normalise.mean, "std": normalise.std})


def per_channel(name: str, values: Sequence[float], channels: int) -> list[float]:
    """One value for each channel."""
    if len(values) not in (1, channels):
        raise ValueError(f"{name} must have one value, or one for each of {channels} channels, got {len(values)}")
    return list(values) * channels if len(values) == 1 else list(values)


def embed(
    data: DataSet,
    backbone: Backbone,
    device: torch.device,
    *,
    counts: Mapping[str, int | None],
    batch_size: int = 64,
    progress: Callable[[Sequence[Tensor], str], Iterable[Tensor]] = lambda batches, what: batches,
) -> dict[str, NDArray[Any]]:
    """Arrays x_train, y_train, x_test, y_test, classes and provenance (JSON).

    ``counts`` has the numbers of "train" and "test" images, equally many of each class; None for all.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    arrays: dict[str, NDArray[Any]] = {}
    for part, images, labels in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        count = counts.get(part)
        chosen = torch.arange(len(labels)) if count is None else balanced_sample(labels, count, RANDOM_SEED)
        batches = progress(chosen.split(batch_size), f"{part} images")
        features = torch.cat([backbone.features(images, batch, device).float() for batch in batches])
        bad = int((~features.isfinite()).any(1).sum())
        if bad:
            raise ValueError(f"features must be finite, got NaN or infinity for {bad} {part} images of {data.name}")
        arrays |= {f"x_{part}": features.numpy(), f"y_{part}": labels[chosen].numpy()}
    provenance = {"isda": __version__, "data": data.name, "data_digest": data.digest, **backbone.provenance}
    return arrays | {"classes": np.array(data.classes), "provenance": np.array(json.dumps(provenance))}


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to an .npz file that is never left incomplete."""
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def probability_measures(likely: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Error and expected calibration error in percent, and the mean log-likelihood; (N, K) probabilities, (N,) labels.

    Example:
        >>> measures = probability_measures(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
        >>> round(measures["log_likelihood"], 3)  # mean of log 0.5 and log 0.75
        -0.49
    """
    right, confidence = likely.argmax(1) == labels, likely.max(1)
    bins = np.ceil(confidence * CALIBRATION_BINS).astype(int)
    gaps = np.bincount(bins, confidence - right)
    own = np.maximum(likely[np.arange(len(labels)), labels], MIN_PROBABILITY)
    return {
        "error": 100 * float(1 - right.mean()),
        "log_likelihood": float(np.log(own).mean()),
        "calibration": 100 * float(np.abs(gaps).sum() / len(labels)),
    }
