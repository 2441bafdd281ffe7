"""Compute the features of a data set with a named network or the network of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda import __version__, networks
from isda.data import DataSet
from isda.data.augment import Normalize
from isda.data.dataset import Images
from isda.data.splits import balanced_sample
from isda.engine.digests import file_digest
from isda.estimator.embedding_files import FeatureRows, write_npz
from isda.estimator.embedding_tables import TableSplit, read_tables
from isda.networks import Network
from isda.networks.timm_models import TIMM_PREFIX
from isda.networks.weight_files import check_weight_values, read_weights
from isda.tasks.common.data import images_at
from isda.tasks.common.dry_run import BUILD_ERRORS, first_line
from isda.tasks.transfer.features import Source, extract_features, load_source, match_input_format

__all__ = ["Embeddings", "FeatureRows", "TableSplit", "embed", "read_tables"]

BODY_PREFIX = "body."
"""How the names of a body begin in the weights of this package."""

CLASSIFIER_PREFIXES = ("classifier.", "fc.", "head.", "last_linear.", "head_dist.")
"""How the names of a last layer begin, in this package, torchvision and timm: it makes no features."""

BATCH_COUNT_SUFFIX = "num_batches_tracked"
"""Files from before torch counted batches lack it, and only an average without momentum would use it."""


def input_channels(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> int | None:
    """The channels of the images that weights are for, or None where they do not have the first convolution of a body.

    Args:
        given: tensors for the body, in any order.
        own: those of the body, in the order of its layers.

    Example:
        >>> import torch
        >>> own = {"first.weight": torch.zeros(8, 3, 5, 5), "second.weight": torch.zeros(8, 8, 5, 5)}
        >>> input_channels({"second.weight": torch.zeros(8, 8, 5, 5), "first.weight": torch.zeros(8, 1, 5, 5)}, own)
        1
    """
    first = next((name for name, tensor in own.items() if tensor.dim() == 4), None)
    found = given.get(first) if first is not None else None
    return int(found.shape[1]) if found is not None and found.dim() == 4 else None


def body_weights(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the body: without the prefix that this package gives them, and without those of a last layer.

    Args:
        state: of the file.
        own: of the body.
    """
    if any(name.startswith(BODY_PREFIX) for name in state):
        return {
            name.removeprefix(BODY_PREFIX): tensor for name, tensor in state.items() if name.startswith(BODY_PREFIX)
        }
    return {name: tensor for name, tensor in state.items() if name in own or not name.startswith(CLASSIFIER_PREFIXES)}


def check_body_weights(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError that names the first tensor that is missing, left over, of another shape, or not finite.

    Args:
        given: tensors for the body.
        own: those that it has.
        source: where they come from.
    """
    for name, tensor in given.items():
        if name in own and own[name].shape != tensor.shape:
            raise ValueError(
                f"pretrained must have {name} of shape {tuple(own[name].shape)}, got {tuple(tensor.shape)} in {source}"
            )
    missing = [name for name in own if name not in given and not name.endswith(BATCH_COUNT_SUFFIX)]
    unknown = [name for name in given if name not in own]
    for names, wrong in ((missing, "lacks"), (unknown, "has the unknown")):
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"pretrained must hold the weights of the network, {source} {wrong} {names[0]}{others}")
    check_weight_values(given, own, source)


TIMM_WEIGHTS = "timm"
"""Instead of a file of weights: those that timm fetches."""

DEFAULT_IMAGE_SIZE = (224, 224)
"""Of images that differ in size, for a network that does not say what it was trained on."""

MAX_IMAGE_SIDE = 10_000
"""Height and width of images, beyond which no network of today goes."""

RANDOM_SEED = 0


class EmbeddingBackbone(Protocol):
    """Makes features of images."""

    @property
    def provenance(self) -> dict[str, Any]:
        """What identifies it and how it sees images, as plain values."""

    @property
    def feature_dim(self) -> int:
        """A."""

    def features(self, images: Images, indices: Tensor, device: torch.device) -> Tensor:
        """(N, A) float32 on the CPU, of the images at ``indices`` (N,)."""


@dataclass(frozen=True)
class RunBackbone:
    """The network of a run, with the images as it was trained to see them."""

    source: Source

    @property
    def provenance(self) -> dict[str, Any]:
        """The run, by its configuration and the digest of its weights."""
        fields = self.source.fields
        kept = ("network", "method", "seed", "mean", "std", "image_size", "source_data", "source_sha256")
        return {key: fields[key] for key in kept}

    @property
    def feature_dim(self) -> int:
        """A."""
        return self.source.trained.network.feature_dim

    def features(self, images: Images, indices: Tensor, device: torch.device) -> Tensor:
        """(N, A) what its classifier reads."""
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
        """Name, weights and what images go through."""
        return {
            "network": self.name,
            "weights": self.weights,
            "image_size": self.image_size,
            "mean": self.normalise.mean,
            "std": self.normalise.std,
        }

    @property
    def feature_dim(self) -> int:
        """A."""
        return self.network.feature_dim

    @torch.inference_mode()
    def features(self, images: Images, indices: Tensor, device: torch.device) -> Tensor:
        """(N, A) what the last layer would read."""
        # Of one size, so that they are one tensor.
        seen = cast(Tensor, match_input_format(images_at(images, indices), self.channels, self.image_size))
        network = self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        pixels = self.normalise(seen.to(device)).contiguous(memory_format=torch.channels_last)
        made: Tensor = network.features(pixels).float().cpu()
        return made


def find_backbone(
    network: str,
    data: DataSet,
    pretrained: str | None = None,
    *,
    image_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> EmbeddingBackbone:
    """The network that a user names.

    Args:
        network: ``timm:NAME``, a name of `isda networks`, or the folder of a finished run of a classifier.
        data: whose images it will see.
        pretrained: a file of weights, or "timm" for those that timm fetches; random weights if left out.
        image_size: height and width that images are resized to; by default what the network was trained on, else
            what the images have.
        mean: of pixels in 0..1, a value or one per channel; by default the network's own, else the data set's.
        std: likewise.

    Raises:
        ValueError: no such network, weights that do not fit it, or settings that a run has decided.
    """
    if image_size is not None and not 1 <= image_size <= MAX_IMAGE_SIDE:
        raise ValueError(f"image_size must be in 1..{MAX_IMAGE_SIDE}, got {image_size}")
    known = network.startswith(TIMM_PREFIX) or network in networks.names()
    if not known and Path(network).is_dir():
        given = {"pretrained": pretrained, "image_size": image_size, "mean": mean, "std": std}
        decided = [name for name, value in given.items() if value is not None]
        if decided:
            raise ValueError(f"{decided[0]} must not be given with the run {network}, which decides it")
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
    network = _create_network(name, channels, fetched=pretrained == TIMM_WEIGHTS)
    if state is not None:
        weights_of_body = body_weights(state, network.body.state_dict())
        taken = input_channels(weights_of_body, network.body.state_dict())
        if taken not in (None, channels):
            channels, network = taken, _create_network(name, taken, fetched=False)
        check_body_weights(weights_of_body, network.body.state_dict(), str(pretrained))
        network.body.load_state_dict(weights_of_body, strict=False)
    own: Mapping[str, Any] = getattr(network.body, "pretrained_cfg", None) or {} if from_timm else {}
    size = tuple(own.get("input_size", ())[1:]) or data.image_size or DEFAULT_IMAGE_SIZE
    weights = {None: f"random, seed {RANDOM_SEED}", TIMM_WEIGHTS: "timm"}.get(pretrained)
    return NamedBackbone(
        name,
        network.eval(),
        weights or f"{Path(str(pretrained)).name}, sha256 {file_digest(Path(str(pretrained)))['sha256']}",
        channels,
        (image_size, image_size) if image_size is not None else (int(size[0]), int(size[1])),
        Normalize(
            _per_channel("mean", mean or own.get("mean") or data.mean, channels),
            _per_channel("std", std or own.get("std") or data.std, channels),
        ),
    )


def _create_network(name: str, channels: int, *, fetched: bool) -> Network:
    """The network with random weights that are always the same, or with timm's."""
    if not fetched:
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
"""Which images are taken where not all are wanted."""

Progress = Callable[[Sequence[Tensor], str], Iterable[Tensor]]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of training and test images (N, A) float32, their labels (N,) int64, class names, and where from."""

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    provenance: dict[str, Any]

    def write(self, path: Path) -> None:
        """As an .npz file that `isda classify` reads."""
        arrays: dict[str, NDArray[Any]] = {
            "x_train": self.x_train,
            "y_train": self.y_train,
            "x_test": self.x_test,
            "y_test": self.y_test,
            "classes": np.array(self.classes),
        }
        write_npz(path, arrays, self.provenance)


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
    """Let a network see the images of a data set.

    Args:
        data: the images.
        backbone: the network.
        device: where it computes.
        train: how many training images, equally many of each class; all by default.
        test: how many test images, likewise.
        batch_size: images at once.
        progress: shows how far the batches have come.

    Raises:
        ValueError: features that are not finite, or more images asked for than there are.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    parts = {"train": (data.x_train, data.y_train, train), "test": (data.x_test, data.y_test, test)}
    chosen = {part: _sample_indices(part, labels, count) for part, (_, labels, count) in parts.items()}
    made = {}
    for part, (images, _, _) in parts.items():
        batches = progress(chosen[part].split(min(batch_size, len(chosen[part]))), f"{part} images")
        made[part] = torch.cat([_features(backbone, images, batch, device) for batch in batches]).numpy()
        broken = int((~np.isfinite(made[part]).all(1)).sum())
        if broken:
            raise ValueError(f"features must be finite, got {broken} {part} images of {data.name} whose are not")
    labels = {part: parts[part][1][chosen[part]].numpy() for part in parts}
    provenance = {"isda": __version__, "data": data.name, "data_digest": data.digest, **backbone.provenance}
    if train is not None or test is not None:
        provenance["drawn_with_seed"] = SAMPLE_SEED
    return Embeddings(made["train"], labels["train"], made["test"], labels["test"], data.classes, provenance)


def _features(backbone: EmbeddingBackbone, images: Images, batch: Tensor, device: torch.device) -> Tensor:
    try:
        return backbone.features(images, batch, device)
    except (AssertionError, *BUILD_ERRORS) as error:  # timm asserts that images have the size of a vision transformer
        told = backbone.provenance
        raise ValueError(
            f"{told['network']} cannot take images of size {told['image_size']}: {first_line(error)}"
        ) from error


def _sample_indices(part: str, labels: Tensor, count: int | None) -> Tensor:
    if count is None:
        return torch.arange(len(labels))
    try:
        return balanced_sample(labels, count, SAMPLE_SEED)
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error
