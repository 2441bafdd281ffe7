"""What a classifier multiplies: the weight, bias and sizes of a linear layer, a convolution, or one with LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isda.functional.patches import Patches

__all__ = [
    "base_of",
    "bias_of",
    "drops_features",
    "features_of",
    "is_layer",
    "is_pointwise",
    "is_product",
    "sizes_of",
    "weight_of",
]


def base_of(head: nn.Module) -> nn.Linear | nn.Conv2d:
    """The layer itself, without the adapters that peft has put around it."""
    while _is_adapted(head):
        head = head.base_layer  # type: ignore[assignment]
    return head  # type: ignore[return-value]


def is_layer(module: nn.Module) -> bool:
    """Whether it is a linear layer or an ungrouped convolution, with LoRA or without."""
    base = base_of(module)
    return isinstance(base, nn.Linear) or (isinstance(base, nn.Conv2d) and base.groups == 1)


def is_pointwise(head: nn.Module) -> bool:
    """Whether it is a linear layer, or a convolution whose places see one place of the input each."""
    base = base_of(head)
    if isinstance(base, nn.Linear):
        return True
    return base.kernel_size == (1, 1) and base.stride == (1, 1) and not any(base._reversed_padding_repeated_twice)


def sizes_of(head: nn.Module) -> tuple[int, int]:
    """C and A of a classifier; A is A k k for a k x k convolution. They do not depend on how the weight is sharded."""
    base = base_of(head)
    if isinstance(base, nn.Linear):
        return base.out_features, base.in_features
    return base.out_channels, base.in_channels * base.kernel_size[0] * base.kernel_size[1]


def weight_of(head: nn.Module) -> Tensor:
    """The classifier's weight, as it is now: gathered or recomputed by whoever shards or parametrises it.

    (C, A), or (C, A, 1, 1) of a 1x1 convolution; (C, A k k) of a larger one. With LoRA it is W + s B A, and its
    gradient reaches the factors.
    """
    base = base_of(head)
    weight = _plain_weight(base)
    for adapter in _active_adapters(head):
        down, up = head.lora_A[adapter].weight, head.lora_B[adapter].weight  # type: ignore[union-attr,index]
        update = (up.flatten(1) @ down.flatten(1)).view(weight.shape)
        weight = weight + head.scaling[adapter] * update.to(weight.dtype)  # type: ignore[index]
    return weight if is_pointwise(base) else weight.flatten(1)


def bias_of(head: nn.Module) -> Tensor | None:
    """The classifier's bias (C,), as it is now, or None."""
    bias = base_of(head).bias
    for adapter in _active_adapters(head):
        more = head.lora_B[adapter].bias  # type: ignore[union-attr,index]
        if more is not None:
            more = head.scaling[adapter] * more  # type: ignore[index]
            bias = more if bias is None else bias + more
    return bias


def features_of(head: nn.Module, inputs: Tensor) -> Tensor | Patches:
    """What the weight multiplies, in the layout of the input; patches of it for a convolution that sees more."""
    return inputs if is_pointwise(head) else Patches.seen_by(base_of(head), inputs)  # type: ignore[arg-type]


def drops_features(head: nn.Module) -> bool:
    """Whether adapters of this classifier see their input through dropout, so that W + s B A holds on average only."""
    return head.training and any(
        getattr(head.lora_dropout[adapter], "p", 0) > 0  # type: ignore[index]
        for adapter in _active_adapters(head)
    )


def is_product(head: nn.Module) -> bool:
    """Whether the output is W a + b, W as ``weight_of`` has it. A layer with a forward of its own is tried out."""
    if not is_layer(head):
        return False
    if _is_adapted(head):
        return not getattr(head, "lora_variant", {}) and not _is_adapted(head.base_layer) and is_product(base_of(head))
    # Parametrised layers (weight norm) are subclasses made on the fly, with the forward of what they wrap.
    if "forward" not in vars(head) and type(head).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    if not set(head._parameters) <= {"weight", "bias"}:
        return False
    return _computes_product(head)  # type: ignore[arg-type]


def _computes_product(head: nn.Linear | nn.Conv2d) -> bool:
    product: Callable[..., Tensor]
    if isinstance(head, nn.Linear):
        shape, product = [4, head.in_features], F.linear
    else:
        shape, product = [2, head.in_channels, *(2 * size for size in head.kernel_size)], head._conv_forward
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(head.weight)
    with torch.no_grad():
        expected = product(rows, head.weight, head.bias)
        try:
            output: Any = head.forward(rows)
        except (RuntimeError, TypeError, ValueError):
            return False
    return isinstance(output, Tensor) and output.shape == expected.shape and torch.allclose(output, expected, rtol=0.01)


def _is_adapted(module: Any) -> bool:
    """Whether it is a layer with LoRA as peft makes them."""
    return hasattr(module, "lora_A") and isinstance(getattr(module, "base_layer", None), nn.Module)


def _active_adapters(head: Any) -> list[str]:
    """The adapters that are added to what the layer itself computes."""
    if not _is_adapted(head) or head.disable_adapters or head.merged:
        return []
    return [name for name in head.active_adapters if name in head.lora_A]


def _plain_weight(layer: nn.Linear | nn.Conv2d) -> Tensor:
    if not parametrize.is_parametrized(layer, "weight"):
        return layer.weight
    # In training mode every read of a spectrally normalised weight takes a step of the power iteration: not ours.
    parts = list(layer.parametrizations.weight.modules())  # type: ignore[union-attr]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        return layer.weight
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
