"""A network that makes features of images, found by the name of a network or the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from isda import networks
from isda.classification.batches import take
from isda.data import DataSet
from isda.data.augment import Normalize
from isda.data.dataset import Images
from isda.embeddings.weights import body_weights, check_weights, input_channels
from isda.engine.folder.seal import fingerprint
from isda.networks import Network
from isda.networks.registry import TIMM_PREFIX
from isda.networks.weight_files import read_weights
from isda.transfer.seeing import as_seen, features
from isda.transfer.source import Source, load_source

__all__ = ["TIMM_WEIGHTS", "Backbone", "FinishedRun", "NamedNetwork", "find_backbone"]

TIMM_WEIGHTS = "timm"
"""Instead of a file of weights: those that timm fetches."""

SIZE = (224, 224)
"""Of images that differ in size, for a network that does not say what it was trained on."""

LARGEST = 10_000
"""Height and width of images, beyond which no network of today goes."""

RANDOM_SEED = 0


class Backbone(Protocol):
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
class FinishedRun:
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
        return features(self.source.trained, images, indices, device).float()


@dataclass(frozen=True)
class NamedNetwork:
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
        seen = cast(Tensor, as_seen(take(images, indices), self.channels, self.image_size))
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
) -> Backbone:
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
    if image_size is not None and not 1 <= image_size <= LARGEST:
        raise ValueError(f"image_size must be in 1..{LARGEST}, got {image_size}")
    known = network.startswith(TIMM_PREFIX) or network in networks.names()
    if not known and Path(network).is_dir():
        given = {"pretrained": pretrained, "image_size": image_size, "mean": mean, "std": std}
        decided = [name for name, value in given.items() if value is not None]
        if decided:
            raise ValueError(f"{decided[0]} must not be given with the run {network}, which decides it")
        return FinishedRun(load_source(Path(network)))
    if not known and ("/" in network or "\\" in network):
        raise ValueError(f"network must be timm:NAME, a name of `isda networks` or the folder of a run, got {network}")
    return _named(network, data, pretrained, image_size, mean, std)


def _named(
    name: str,
    data: DataSet,
    pretrained: str | None,
    image_size: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> NamedNetwork:
    from_timm = name.startswith(TIMM_PREFIX)
    state = read_weights(Path(pretrained)) if pretrained not in (None, TIMM_WEIGHTS) else None
    channels = 3 if from_timm else data.channels
    network = _made(name, channels, fetched=pretrained == TIMM_WEIGHTS)
    if state is not None:
        weights_of_body = body_weights(state, network.body.state_dict())
        taken = input_channels(weights_of_body, network.body.state_dict())
        if taken not in (None, channels):
            channels, network = taken, _made(name, taken, fetched=False)
        check_weights(weights_of_body, network.body.state_dict(), str(pretrained))
        network.body.load_state_dict(weights_of_body, strict=False)
    own: Mapping[str, Any] = getattr(network.body, "pretrained_cfg", None) or {} if from_timm else {}
    size = tuple(own.get("input_size", ())[1:]) or data.image_size or SIZE
    weights = {None: f"random, seed {RANDOM_SEED}", TIMM_WEIGHTS: "timm"}.get(pretrained)
    return NamedNetwork(
        name,
        network.eval(),
        weights or f"{Path(str(pretrained)).name}, sha256 {fingerprint(Path(str(pretrained)))['sha256']}",
        channels,
        (image_size, image_size) if image_size is not None else (int(size[0]), int(size[1])),
        Normalize(
            _per_channel("mean", mean or own.get("mean") or data.mean, channels),
            _per_channel("std", std or own.get("std") or data.std, channels),
        ),
    )


def _made(name: str, channels: int, *, fetched: bool) -> Network:
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
