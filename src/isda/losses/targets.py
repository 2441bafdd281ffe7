"""Layout of logits, features and targets: model outputs, class indices or distributions, pixels as rows, resizing;
and the loss F - q.z for targets of every kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils.checks import check_labels_dtype, shape_of, warn
from isda._utils.devices import READ_EVERY, in_graph, on_host
from isda.functional.patches import Patches

_TOLERANCE = 0.05
"""How far a distribution, rounded to whatever precision it was kept in, may be from a sum of 1."""


def is_soft(targets: Tensor) -> bool:
    """Whether targets are distributions over the classes (mixup, cutmix, distillation)."""
    return targets.is_floating_point()


def check_targets(logits: Tensor, targets: Tensor) -> None:
    """Class indices (N, ...) or distributions (N, C, ...) for logits (N, C, ...)."""
    if is_soft(targets):
        if targets.shape != logits.shape:
            expected = f"the shape of logits, {shape_of(logits)}"
            raise ValueError(f"targets given as distributions must have {expected}, got {shape_of(targets)}")
        return
    check_labels_dtype(targets)
    if targets.ndim != logits.ndim - 1 or len(targets) != len(logits):
        expected = (
            f"({len(logits)},)" if logits.ndim == 2 else f"({len(logits)}, " + "..., " * (logits.ndim - 3) + "...)"
        )
        raise ValueError(f"targets must have shape {expected} for logits {shape_of(logits)}, got {shape_of(targets)}")
    if targets.numel() == 0:
        raise ValueError(f"targets must hold at least one label, got {shape_of(targets)}")


class SoftTargetMonitor:
    """Refuses soft targets that are not finite, and warns, once, of rows that do not sum to 1.

    On the CPU in every call; elsewhere the sums are looked at in the first and in every hundredth call.
    """

    def __init__(self) -> None:
        self._calls, self._warned = 0, False

    def check(self, targets: Tensor) -> None:
        """Look at targets (N, C, ...)."""
        if in_graph():
            return
        self._calls += 1
        here = on_host(targets)
        if not here and (self._warned or self._calls % READ_EVERY != 1):
            return
        sums = targets.detach().sum(1, dtype=torch.promote_types(targets.dtype, torch.float32))
        low, high = torch.stack(sums.aminmax()).tolist()
        if here and not (math.isfinite(low) and math.isfinite(high)):
            bad = int(sums.isfinite().logical_not().sum())
            raise ValueError(
                f"targets given as distributions must be finite, got NaN or infinity in {bad} of {sums.numel()} rows; "
                "statistics were not changed"
            )
        if not self._warned and max(1 - low, high - 1) > _TOLERANCE:
            self._warned = True
            warn(
                "targets in floating point are taken for distributions over the classes, but the sums of their rows "
                f"lie in {low:.3g}..{high:.3g} instead of at 1; cross-entropy is not meant for several labels per "
                "sample (multi-hot): that is ISDABCELoss"
            )


REDUCTIONS = ("mean", "sum", "none")


def reduce_losses(losses: Tensor, reduction: str, count: Tensor | int | None = None) -> Tensor:
    """Losses reduced the way torch's criteria are; a mean is over ``count`` losses, by default all of them."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if count is None else losses.sum() / count


def widen(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The tensor in ``dtype``, or in its own where that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, dtype))


def bound_loss(
    augmented: Tensor,
    plain: Tensor,
    targets: Tensor,
    *,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """sum_c q_c w_c (logsumexp(augmented) - plain_c), reduced the way nn.CrossEntropyLoss reduces.

    Args:
        augmented: (N, C, ...) logits whose logsumexp is F.
        plain: (N, C, ...) logits before augmentation.
        targets: (N, ...) class indices or (N, C, ...) distributions q.
        class_weight: (C,) weights w of the classes, or None.
        ignore_index: label that does not count.
        reduction: mean, sum or none; the mean of class indices is weighted by w_y, as in nn.CrossEntropyLoss.
        label_smoothing: share of q that is spread over all classes.
    """
    num_classes = plain.shape[1]
    if class_weight is None and not label_smoothing and not is_soft(targets):
        return _plain_loss(augmented, plain, targets, ignore_index, reduction)
    weight = plain.new_ones(num_classes) if class_weight is None else class_weight.to(plain.dtype)
    total = torch.logsumexp(augmented, 1)
    if is_soft(targets):
        share = targets.to(plain.dtype) * (1 - label_smoothing) + label_smoothing / num_classes
        share = share * weight.view(1, -1, *[1] * (plain.ndim - 2))
        loss = share.sum(1) * total - (share * plain).sum(1)
        normaliser: Tensor | int = loss.numel()
    else:
        # Class by class only for smoothing: at label resolution a (N, C, H, W) tensor is a large one.
        valid = targets != ignore_index
        labels = torch.where(valid, targets, 0)
        own = weight[labels]
        loss = (1 - label_smoothing) * own * (total - plain.gather(1, labels.unsqueeze(1)).squeeze(1))
        if label_smoothing:
            spread = weight.sum() * total - torch.tensordot(plain, weight, dims=([1], [0]))
            loss = loss + label_smoothing / num_classes * spread
        loss = torch.where(valid, loss, 0)
        normaliser = (own * valid).sum()
    return reduce_losses(loss, reduction, normaliser)


def _plain_loss(augmented: Tensor, plain: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The common case, labels of equal weight, in few kernels."""
    ignored = targets == ignore_index
    own = plain.gather(1, targets.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
    loss = (torch.logsumexp(augmented, 1) - own).masked_fill(ignored, 0)
    return reduce_losses(loss, reduction, ignored.numel() - ignored.sum() if reduction == "mean" else None)


_NAMES = ("logits", "out")


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: itself, or its entry ``logits`` or ``out``.

    Dictionaries (torchvision's segmentation models), outputs of transformers and named tuples (Inception) have names.

    Raises:
        ValueError: there is no telling which part the logits are.

    Example:
        >>> import torch
        >>> logits_of({"out": torch.zeros(2, 3), "aux": torch.ones(2, 3)})
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    if isinstance(output, Tensor):
        return output
    for name in _NAMES:
        part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(part, Tensor):
            return part
    what = type(output).__name__
    if isinstance(output, Mapping):
        what += f" with {', '.join(map(str, output)) or 'nothing'}"
    elif isinstance(output, (tuple, list)):
        what += f" of {len(output)}"
    raise ValueError(f"logits must be a tensor, or an output that has them as logits or out, got a {what}")


def has_classes_last(logits: Tensor, targets: Tensor, num_classes: int) -> bool | None:
    """Whether logits and targets are laid out like tokens, (N, L, C) and (N, L); None where the shapes allow both."""
    wanted = logits.shape if is_soft(targets) else logits.shape[:-1]
    if logits.ndim < 3 or logits.shape[-1] != num_classes or targets.shape != wanted:
        return False
    return True if logits.shape[1] != num_classes else None


def classes_second(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, ..., C) as (N, C, ...), and targets, where they are distributions, likewise."""
    soft = is_soft(targets) and targets.shape == logits.shape
    return logits.movedim(-1, 1), targets.movedim(-1, 1) if soft else targets


_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@overload
def as_rows(tensor: Tensor) -> Tensor: ...


@overload
def as_rows(tensor: Tensor | Patches) -> Tensor | Patches: ...


def as_rows(tensor: Tensor | Patches) -> Tensor | Patches:
    """(N, D, ...) to (N * pixels, D); a batch without pixels, and patches, which are rows, stay as they are."""
    if isinstance(tensor, Patches):
        return tensor
    return tensor if tensor.ndim == 2 else tensor.movedim(1, -1).flatten(0, -2)


def grid_of(features: Tensor | Patches) -> torch.Size:
    """The spatial size of features (N, A, ...)."""
    return features.grid if isinstance(features, Patches) else features.shape[2:]


def as_maps(rows: Tensor, samples: int, grid: torch.Size) -> Tensor:
    """Undo ``as_rows``: (N * pixels, D) to (N, D, ...) for so many samples of that spatial size."""
    return rows.view(samples, *grid, rows.shape[1]).movedim(-1, 1) if grid else rows


def resize_labels(targets: Tensor, size: torch.Size) -> Tensor:
    """Nearest labels at the resolution of the features: they only choose whose statistics a pixel uses and feeds."""
    if targets.shape[1:] == size:
        return targets
    # In float64, because every label has to survive the way through a floating point image.
    return F.interpolate(targets.unsqueeze(1).to(torch.float64), size=size, mode="nearest").squeeze(1).to(targets.dtype)


def resize_logits(logits: Tensor, size: torch.Size, align_corners: bool) -> Tensor:
    """Linear interpolation to ``size``; the logits themselves when they have it already."""
    if logits.shape[2:] == size:
        return logits
    return F.interpolate(logits, size=size, mode=_LINEAR[logits.ndim - 2], align_corners=align_corners)


def resize_rows(rows: Tensor, grid: torch.Size, logits: Tensor, align_corners: bool) -> Tensor:
    """(N, C, ...) at the resolution of the logits from rows (N * pixels, C) at that of the features, ``grid``."""
    return resize_logits(as_maps(rows, len(logits), grid), logits.shape[2:], align_corners)
