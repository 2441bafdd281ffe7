"""Pretrained weights from a file or from timm's hub."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
HUB_TIMEOUT_SECONDS = 5


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
    if not name.startswith(TIMM_PREFIX):
        if name not in IMAGENET:
            raise ValueError(
                f"pretrained must come with a network for ImageNet, timm:NAME or {', '.join(IMAGENET)}, got {name}; "
                "the backbones of finished runs are fine-tuned by `isda transfer`"
            )
        config: dict[str, Any] = {}
    else:
        config = _timm_config(name)
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
    return _from_hub(name, {key: value for key, value in options.items() if key not in ("in_channels", "pretrained")})


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


def _from_hub(name: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    import timm

    config = _timm_config(name)
    if not any(config.get(key) for key in ("hf_hub_id", "url", "file")):
        raise ValueError(f"pretrained must name a file for {name}, timm has no weights for it")
    overlay, repository = {}, config.get("hf_hub_id")
    if repository:
        cached = _cached(repository, config.get("hf_hub_filename"))
        if cached:
            overlay = {"file": cached}
        else:
            _check_reachable(repository, name)
    try:
        with _hub_logging_disabled():
            model = timm.create_model(
                name.removeprefix(TIMM_PREFIX), pretrained=True, pretrained_cfg_overlay=overlay, **options
            )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(_unavailable_message(name, error)) from error
    return dict(model.state_dict())


def _cached(repository: str, filename: str | None) -> str | None:
    """The downloaded file of a repository in the hub's cache, if there is one."""
    from huggingface_hub import try_to_load_from_cache

    names = [filename] if filename else ["model.safetensors", "pytorch_model.bin"]
    # A name may end in the revision.
    own, _, revision = repository.partition("@")
    paths = (try_to_load_from_cache(own, file, revision=revision or None) for file in names)
    return next((path for path in paths if isinstance(path, str)), None)


def _check_reachable(repository: str, name: str) -> None:
    """Try once with a short timeout: the hub's library would retry for most of a minute."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(f"{constants.ENDPOINT}/{repository.partition('@')[0]}", timeout=HUB_TIMEOUT_SECONDS)
    except Exception as error:  # depends on the HTTP library that the hub uses
        raise ValueError(_unavailable_message(name, error)) from error


def _unavailable_message(name: str, error: BaseException) -> str:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return f"the pretrained weights of {name} could not be had from the hub ({reason}); name a file: --pretrained FILE"


@contextmanager
def _hub_logging_disabled() -> Iterator[None]:
    """Silence the hub's log of every try: the error is raised once."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
