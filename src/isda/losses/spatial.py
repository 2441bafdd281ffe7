"""Pixels as rows: flattening feature maps, and labels at another resolution than the features."""

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.functional.patches import Patches

__all__ = ["as_maps", "as_rows", "resize_labels", "resize_logits", "resize_rows"]

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
