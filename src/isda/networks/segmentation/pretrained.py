"""Weights for a backbone, under the names that torchvision gives them: from its ImageNet models or from a file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from isda.networks.fitting import check_values

__all__ = ["TORCHVISION", "load_backbone", "torchvision_state"]

TORCHVISION = "torchvision"
CLASSIFIER = "fc."
"""How the names of torchvision's classifier begin, which a backbone has none of."""


def torchvision_state(depth: int) -> dict[str, Tensor]:
    """The weights of torchvision's residual network trained on ImageNet (the first version), fetched if need be.

    Raises:
        ValueError: they are neither in torch's cache nor to be had.
    """
    from torchvision import models

    try:
        weights = models.get_model_weights(f"resnet{depth}").IMAGENET1K_V1
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"pretrained weights of torchvision's resnet{depth} could not be fetched ({error}); give a file with them"
        ) from error


def load_backbone(backbone: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Give a backbone its weights; those of a classifier are left out, and nothing else may be missing or left over.

    Args:
        backbone: is changed.
        state: tensors under torchvision's names.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing, left over, of another shape, or not finite.
    """
    own = backbone.state_dict()
    given = {name: tensor for name, tensor in state.items() if not name.startswith(CLASSIFIER)}
    # Files from before torch counted batches lack the count, which only an average without momentum would use.
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in own]
    shapes = [name for name in own if name in given and own[name].shape != given[name].shape]
    if shapes:
        name = shapes[0]
        expected, came = tuple(own[name].shape), tuple(given[name].shape)
        raise ValueError(f"pretrained must have {name} of shape {expected}, got {came} in {source}{_stem_hint(name)}")
    for names, wrong in ((missing, "lacks"), (unknown, "has the unknown")):
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"pretrained must hold the backbone's weights, {source} {wrong} {names[0]}{others}")
    check_values(given, own, source)
    backbone.load_state_dict(given, strict=False)


def _stem_hint(name: str) -> str:
    return "; is it for the other stem?" if name == "conv1.weight" else ""
