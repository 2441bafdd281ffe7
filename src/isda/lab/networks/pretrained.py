"""Pretrained weights from a file or from timm's hub, and the image format that they were trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isda.lab.networks.network import Network
from isda.lab.networks.registry import IMAGENET
from isda.lab.networks.timm_models import TIMM_PREFIX, check_timm_model
from isda.lab.networks.weight_files import match_weights, read_weights

HUB = "hub"
"""Instead of a file: the weights that timm has for a model."""
MAX_IMAGE_SIZE = 4096


@dataclass(frozen=True)
class PretrainedInputs:
    """The image format that a network was pretrained on."""

    size: int = 224
    """Side of the square input."""
    resize: int = 256
    """The shorter side before the central crop of evaluation."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @property
    def channels(self) -> int:
        """Number of channels of an image."""
        return len(self.mean)


def pretrained_inputs(name: str, size: int | None = None) -> PretrainedInputs:
    """The image format of a network that was pretrained on ImageNet.

    Args:
        name: ``timm:NAME`` with a configuration in timm, or one of this package's networks for ImageNet.
        size: side of the square input; by default the one of the pretraining.

    Raises:
        ValueError: another network.

    Example:
        >>> pretrained_inputs("timm:tf_efficientnet_lite0", size=112)
        PretrainedInputs(size=112, resize=128, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    """
    if size is not None and not 1 <= size <= MAX_IMAGE_SIZE:
        raise ValueError(f"input_size must be from 1 to {MAX_IMAGE_SIZE} pixels, got {size}")
    config: dict[str, Any] = {}
    if name.startswith(TIMM_PREFIX):
        config = _timm_config(name)
    elif name not in IMAGENET:
        raise ValueError(
            f"pretrained must come with a network for ImageNet, timm:NAME or {', '.join(IMAGENET)}, got {name}; "
            "the backbones of finished runs are fine-tuned by `isda transfer`"
        )
    default = PretrainedInputs()
    side = size or min(config.get("input_size", (3, default.size, default.size))[1:])
    resize = max(side, math.floor(side / (config.get("crop_pct") or default.size / default.resize)))
    return PretrainedInputs(
        side, resize, tuple(config.get("mean", default.mean)), tuple(config.get("std", default.std))
    )


def pretrained_weights(name: str, source: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The initial tensors of a network.

    ``source`` is a file of safetensors or torch.save, or HUB.

    Raises:
        ValueError: they are not available; says why.
    """
    if source != HUB:
        return read_weights(Path(source))
    if not name.startswith(TIMM_PREFIX):
        timms = name.replace("-", "", 1).replace("-", "_")
        raise ValueError(f"pretrained must name a file for {name}; timm:{timms} has weights on the hub")
    import timm

    options = {key: value for key, value in options.items() if key not in ("in_channels", "pretrained")}
    check_timm_model(name.removeprefix(TIMM_PREFIX))
    try:
        model = timm.create_model(name.removeprefix(TIMM_PREFIX), pretrained=True, **options)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"the pretrained weights of {name} could not be had from the hub ({reason}); name a file: --pretrained FILE"
        ) from error
    return dict(model.state_dict())


def load_pretrained(network: Network, name: str, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights into the body of a network; nothing changes if they do not fit. The classifier keeps its weights.

    Weights may have the names of timm, of torchvision, or of a run's model.safetensors; ``source`` is named in errors.

    Raises:
        ValueError: see `match_weights`.
    """
    heads: str | tuple[str, ...] = "fc"
    if name.startswith(TIMM_PREFIX):
        heads = _timm_config(name).get("classifier") or ()
    classifiers = tuple(f"{head}." for head in ("classifier", *((heads,) if isinstance(heads, str) else heads)))
    own = network.body.state_dict()
    network.body.load_state_dict(own | match_weights(own, weights, source, classifiers))


def _timm_config(name: str) -> dict[str, Any]:
    """Timm's configuration of the pretrained weights of a model."""
    from timm.models import get_pretrained_cfg

    own = name.removeprefix(TIMM_PREFIX)
    check_timm_model(own)
    config = get_pretrained_cfg(own)
    if config is None:
        raise ValueError(f"timm must have a configuration of pretrained weights of {own}, it has none")
    return dict(config.to_dict())
