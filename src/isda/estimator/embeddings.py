"""Compute the features of a data set with a named network or the network of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda import __version__
from isda.estimator.embedding_files import FeatureRows, write_npz
from isda.estimator.embedding_tables import TableSplit, read_tables
from isda.lab import networks
from isda.lab.data import DataSet
from isda.lab.data.augment import Normalize
from isda.lab.data.dataset import Images
from isda.lab.data.npz import NPZ_KEYS
from isda.lab.data.splits import balanced_sample
from isda.lab.files import file_digest
from isda.lab.networks import Network
from isda.lab.networks.timm_models import TIMM_PREFIX
from isda.lab.networks.weight_files import match_weights, read_weights, strip_prefix
from isda.lab.tasks.classification.pretrained import BUILD_ERRORS
from isda.lab.tasks.common.data import images_at
from isda.lab.tasks.transfer.features import Source, extract_features, load_source, match_input_format

__all__ = ["Embeddings", "FeatureRows", "TableSplit", "embed", "read_tables"]

CLASSIFIER_PREFIXES = ("classifier.", "fc.", "head.", "last_linear.", "head_dist.")
"""Prefixes of the names of a last layer in this package, torchvision and timm."""


def input_channels(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> int | None:
    """The channels of the images that weights are for, or None if they lack the first convolution of the body.

    ``own`` must be in the order of the layers.

    Example:
        >>> import torch
        >>> own = {"first.weight": torch.zeros(8, 3, 5, 5), "second.weight": torch.zeros(8, 8, 5, 5)}
        >>> input_channels({"second.weight": torch.zeros(8, 8, 5, 5), "first.weight": torch.zeros(8, 1, 5, 5)}, own)
        1
    """
    first = next((name for name, tensor in own.items() if tensor.dim() == 4), "")
    weight = given.get(first)
    return int(weight.shape[1]) if weight is not None and weight.dim() == 4 else None


TIMM_WEIGHTS = "timm"
"""Instead of a file of weights: those that timm downloads."""

DEFAULT_IMAGE_SIZE = (224, 224)
"""For images of various sizes and a network without a configuration."""
MAX_IMAGE_SIDE = 10_000
RANDOM_SEED = 0


@dataclass(frozen=True)
class RunBackbone:
    """The network of a run, with the image format of its training."""

    source: Source

    @property
    def provenance(self) -> dict[str, Any]:
        """The run, by its configuration and the digest of its weights."""
        fields = self.source.fields
        kept = ("network", "method", "seed", "mean", "std", "image_size", "source_data", "source_sha256")
        return {key: fields[key] for key in kept}

    def features(self, images: Images, indices: Tensor, device: torch.device) -> Tensor:
        """(N, A) float32 inputs of its classifier on the CPU, for the images at ``indices`` (N,)."""
        return extract_features(self.source.trained, images, indices, device).float()


@dataclass(frozen=True)
class NamedBackbone:
    """A network by name; whole images are resized to ``image_size`` and normalised."""

    name: str
    network: Network
    weights: str
    channels: int
    image_size: tuple[int, int]
    normalise: Normalize

    @property
    def provenance(self) -> dict[str, Any]:
        """Name, weights and image format."""
        return {
            "network": self.name,
            "weights": self.weights,
            "image_size": self.image_size,
            "mean": self.normalise.mean,
            "std": self.normalise.std,
        }

    @torch.inference_mode()
    def features(self, images: Images, indices: Tensor, device: torch.device) -> Tensor:
        """(N, A) float32 inputs of its last layer on the CPU, for the images at ``indices`` (N,)."""
        # Of one size, so that they are one tensor.
        resized = cast(Tensor, match_input_format(images_at(images, indices), self.channels, self.image_size))
        network = self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        pixels = self.normalise(resized.to(device)).contiguous(memory_format=torch.channels_last)
        features: Tensor = network.features(pixels).float().cpu()
        return features


EmbeddingBackbone = RunBackbone | NamedBackbone


def find_backbone(
    network: str,
    data: DataSet,
    pretrained: str | None = None,
    *,
    image_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> EmbeddingBackbone:
    """Load a network by name or from a run.

    Args:
        network: ``timm:NAME``, a name of `isda networks`, or the folder of a finished run of a classifier.
        data: the images to embed.
        pretrained: a file of weights, or "timm" for those that timm downloads; by default random weights.
        image_size: height and width that images are resized to; by default what the network was trained on, else
            what the images have.
        mean: of pixels in 0..1, a value or one per channel; by default the network's own, else the data set's.
        std: likewise.

    Raises:
        ValueError: no such network, weights that do not fit it, or settings that the run determines.
    """
    if image_size is not None and not 1 <= image_size <= MAX_IMAGE_SIDE:
        raise ValueError(f"image_size must be in 1..{MAX_IMAGE_SIDE}, got {image_size}")
    known = network.startswith(TIMM_PREFIX) or network in networks.names()
    if not known and Path(network).is_dir():
        given = {"pretrained": pretrained, "image_size": image_size, "mean": mean, "std": std}
        refused = [name for name, value in given.items() if value is not None]
        if refused:
            raise ValueError(f"{refused[0]} must not be given with the run {network}, which determines it")
        return RunBackbone(load_source(Path(network)))
    if not known and ("/" in network or "\\" in network):
        raise ValueError(f"network must be timm:NAME, a name of `isda networks` or the folder of a run, got {network}")
    return _named_backbone(network, data, pretrained, image_size, mean, std)


def _named_backbone(
    name: str,
    data: DataSet,
    pretrained: str | None,
    image_size: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> NamedBackbone:
    from_timm = name.startswith(TIMM_PREFIX)
    state = read_weights(Path(pretrained)) if pretrained not in (None, TIMM_WEIGHTS) else None
    channels = 3 if from_timm else data.channels
    network = _create_network(name, channels, download=pretrained == TIMM_WEIGHTS)
    if state is not None:
        own = network.body.state_dict()
        file_channels = input_channels(strip_prefix(own, state), own)
        if file_channels not in (None, channels):
            channels, network = file_channels, _create_network(name, file_channels, download=False)
            own = network.body.state_dict()
        network.body.load_state_dict(own | match_weights(own, state, str(pretrained), CLASSIFIER_PREFIXES))
    config: Mapping[str, Any] = getattr(network.body, "pretrained_cfg", None) or {} if from_timm else {}
    size = tuple(config.get("input_size", ())[1:]) or data.image_size or DEFAULT_IMAGE_SIZE
    weights = {None: f"random, seed {RANDOM_SEED}", TIMM_WEIGHTS: "timm"}.get(pretrained)
    return NamedBackbone(
        name,
        network.eval(),
        weights or f"{Path(str(pretrained)).name}, sha256 {file_digest(Path(str(pretrained)))}",
        channels,
        (image_size, image_size) if image_size is not None else (int(size[0]), int(size[1])),
        Normalize(
            _per_channel("mean", mean or config.get("mean") or data.mean, channels),
            _per_channel("std", std or config.get("std") or data.std, channels),
        ),
    )


def _create_network(name: str, channels: int, *, download: bool) -> Network:
    """The network with fixed random weights, or with timm's."""
    if not download:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            return networks.create(name, num_classes=1, in_channels=channels)
    if not name.startswith(TIMM_PREFIX):
        raise ValueError(f"pretrained must be a file of weights for {name}, timm has weights of its own models only")
    try:
        return networks.create(name, num_classes=1, pretrained=True)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"timm could not fetch the weights of {name}: {reason}; give a file with them") from error


def _per_channel(what: str, values: Sequence[float], channels: int) -> list[float]:
    if len(values) not in (1, channels):
        if len(values) == 3 and channels == 1:
            return [sum(values) / 3]
        raise ValueError(f"{what} must have one value, or one for each of {channels} channels, got {len(values)}")
    return list(values) * channels if len(values) == 1 else list(values)


SAMPLE_SEED = 0
"""Of the choice of images if not all are embedded."""

Progress = Callable[[Sequence[Tensor], str], Iterable[Tensor]]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of training and test images (N, A) float32, their labels (N,) int64, class names and provenance."""

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    provenance: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write an .npz file for `isda classify`."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in NPZ_KEYS}
        write_npz(path, arrays | {"classes": np.array(self.classes)}, self.provenance)


def embed(
    data: DataSet,
    backbone: EmbeddingBackbone,
    device: torch.device,
    *,
    train: int | None = None,
    test: int | None = None,
    batch_size: int = 64,
    progress: Progress = lambda parts, what: parts,
) -> Embeddings:
    """Compute the features of the images of a data set.

    Args:
        data: the images.
        backbone: the network.
        device: on which it runs.
        train: number of training images, equally many of each class; all by default.
        test: number of test images, likewise.
        batch_size: images per call of the network.
        progress: wraps the batches to show progress.

    Raises:
        ValueError: NaN or infinite features, or more images requested than there are.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    parts = {"train": (data.x_train, data.y_train, train), "test": (data.x_test, data.y_test, test)}
    chosen = {part: _sample_indices(part, labels, count) for part, (_, labels, count) in parts.items()}
    features = {}
    for part, (images, _, _) in parts.items():
        batches = progress(chosen[part].split(min(batch_size, len(chosen[part]))), f"{part} images")
        features[part] = torch.cat([_features(backbone, images, batch, device) for batch in batches]).numpy()
        bad = int((~np.isfinite(features[part]).all(1)).sum())
        if bad:
            raise ValueError(
                f"features must be finite, got {bad} {part} images of {data.name} with NaN or infinite features"
            )
    labels = {part: parts[part][1][chosen[part]].numpy() for part in parts}
    provenance = {"isda": __version__, "data": data.name, "data_digest": data.digest, **backbone.provenance}
    if train is not None or test is not None:
        provenance["drawn_with_seed"] = SAMPLE_SEED
    return Embeddings(features["train"], labels["train"], features["test"], labels["test"], data.classes, provenance)


def _features(backbone: EmbeddingBackbone, images: Images, batch: Tensor, device: torch.device) -> Tensor:
    try:
        return backbone.features(images, batch, device)
    except (AssertionError, *BUILD_ERRORS) as error:  # timm asserts that images have the size of a vision transformer
        provenance = backbone.provenance
        raise ValueError(
            f"{provenance['network']} cannot take images of size {provenance['image_size']}: {error}"
        ) from error


def _sample_indices(part: str, labels: Tensor, count: int | None) -> Tensor:
    if count is None:
        return torch.arange(len(labels))
    try:
        return balanced_sample(labels, count, SAMPLE_SEED)
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error
