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

from isda.networks.network import Network
from isda.networks.registry import IMAGENET
from isda.networks.timm_models import TIMM_PREFIX
from isda.networks.weight_files import match_weights, read_weights

HUB = "hub"
"""Instead of a file: the weights that timm has for a model."""
MAX_IMAGE_SIZE = 4096
"""Pixels on a side; a network that sees more is not fine-tuned from one of these."""
HUB_TIMEOUT_SECONDS = 5
"""How long to wait for the first word of the hub."""

_BUFFERS = ("num_batches_tracked", "attn_mask", "relative_position_index")
"""How names end of what older files keep, and networks compute."""


@dataclass(frozen=True)
class PretrainedInputs:
    """The images that a pretrained network is used to."""

    size: int = 224
    """Side of the square that it sees."""
    resize: int = 256
    """The shorter side before the central square is cut out, to evaluate."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @property
    def channels(self) -> int:
        """Of an image."""
        return len(self.mean)


def pretrained_inputs(name: str, size: int | None = None) -> PretrainedInputs:
    """What a network of ImageNet's images is used to, at another size if one is given.

    Args:
        name: ``timm:NAME``, which timm has a configuration of, or one of our networks for ImageNet.
        size: side of the square.

    Raises:
        ValueError: another network.

    Example:
        >>> pretrained_inputs("timm:tf_efficientnet_lite0", size=112)
        Inputs(size=112, resize=128, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    """
    if size is not None and not 1 <= size <= MAX_IMAGE_SIZE:
        raise ValueError(f"input_size must be from 1 to {MAX_IMAGE_SIZE} pixels, got {size}")
    if not name.startswith(TIMM_PREFIX):
        if name not in IMAGENET:
            known = ", ".join(IMAGENET)
            raise ValueError(
                f"pretrained must come with a network for ImageNet, timm:NAME or {known}, got {name}; the backbones of "
                "finished runs are fine-tuned by `isda transfer`"
            )
        known_inputs, share = PretrainedInputs(), 224 / 256
    else:
        found = _timm_config(name)
        _, height, width = found["input_size"]
        share = found.get("crop_pct") or 224 / 256
        known_inputs = PretrainedInputs(min(height, width), 0, tuple(found["mean"]), tuple(found["std"]))
    side = size or known_inputs.size
    return PretrainedInputs(side, max(side, math.floor(side / share)), known_inputs.mean, known_inputs.std)


def pretrained_weights(name: str, source: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that a network is to begin with.

    Args:
        name: of the network.
        source: a file, safetensors or torch.save's, or HUB.
        options: of the network.

    Raises:
        ValueError: they cannot be had; says why.
    """
    if source != HUB:
        return read_weights(Path(source))
    if not name.startswith(TIMM_PREFIX):
        timms = name.replace("-", "", 1).replace("-", "_")
        raise ValueError(f"pretrained must name a file for {name}; timm:{timms} has weights on the hub")
    return _from_hub(name, {key: value for key, value in options.items() if key not in ("in_channels", "pretrained")})


def load_pretrained(network: Network, name: str, weights: Mapping[str, Tensor], source: str) -> None:
    """Give the body of a network its weights; the classifier stays as it is, and the network, if they do not fit.

    Args:
        network: is changed.
        name: of the network.
        weights: under the names of timm, torchvision, or of a run's model.safetensors.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing, of another shape, or belongs to another network.
    """
    wanted = network.body.state_dict()
    found, rest = match_weights(wanted, weights, source)
    heads = tuple(f"{head}." for head in _classifiers(name))
    foreign = [one for one in rest if not one.startswith(heads) and not one.endswith(_BUFFERS)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ValueError(f"{source} must hold the weights of {name}, which has no {foreign[0]}{more}")
    network.body.load_state_dict(wanted | found)


def _classifiers(name: str) -> tuple[str, ...]:
    """What the classifier may be called in a file."""
    if not name.startswith(TIMM_PREFIX):
        return ("fc", "classifier")
    named = _timm_config(name).get("classifier") or ()
    return ("classifier", *((named,) if isinstance(named, str) else named))


def _timm_config(name: str) -> dict[str, Any]:
    """The configuration that timm has of pretrained weights."""
    import timm
    from timm.models import get_pretrained_cfg

    from isda._utils.choices import did_you_mean

    own = name.removeprefix(TIMM_PREFIX)
    if not timm.is_model(own):
        raise ValueError(f"timm has no model {own!r}{did_you_mean(own, timm.list_models())}")
    found = get_pretrained_cfg(own)
    if found is None:
        raise ValueError(f"timm must know the images that {own} was trained on, it has no configuration of weights")
    return dict(found.to_dict())


def _from_hub(name: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    import timm

    own, known = name.removeprefix(TIMM_PREFIX), _timm_config(name)
    if not any(known.get(key) for key in ("hf_hub_id", "url", "file")):
        raise ValueError(f"pretrained must name a file for {name}, timm has no weights for it")
    overlay, repository = {}, known.get("hf_hub_id")
    if repository:
        cached = _cached(repository, known.get("hf_hub_filename"))
        if cached:
            overlay = {"file": cached}
        else:
            _check_reachable(repository, name)
    try:
        with _hub_logging_disabled():
            model = timm.create_model(own, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(_unavailable_message(name, error)) from error
    return dict(model.state_dict())


def _cached(repository: str, filename: str | None) -> str | None:
    """The file of a repository that was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    names = [filename] if filename else ["model.safetensors", "pytorch_model.bin"]
    # A name may end in the revision.
    own, _, revision = repository.partition("@")
    found = (try_to_load_from_cache(own, one, revision=revision or None) for one in names)
    return next((path for path in found if isinstance(path, str)), None)


def _check_reachable(repository: str, name: str) -> None:
    """One short try: the hub's own library would go on for most of a minute before it gives up."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(f"{constants.ENDPOINT}/{repository.partition('@')[0]}", timeout=HUB_TIMEOUT_SECONDS)
    except Exception as error:  # whatever library it speaks through has errors of its own
        raise ValueError(_unavailable_message(name, error)) from error


def _unavailable_message(name: str, error: BaseException) -> str:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return f"the pretrained weights of {name} could not be had from the hub ({reason}); name a file: --pretrained FILE"


@contextmanager
def _hub_logging_disabled() -> Iterator[None]:
    """What the hub's library says of every try, an error says once."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
