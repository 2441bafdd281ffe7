"""Offsets of margins for classes of very different sizes: part of the logits in training, left out in prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.choices import check_choice
from isda.losses.long_tail import LDAMMargins, LogitAdjustment, Offset

__all__ = ["check_offset", "offset_table"]

_MAKERS: dict[str, Callable[[Tensor], Offset]] = {"logit-adjustment": LogitAdjustment, "ldam": LDAMMargins}


def check_offset(offset: Any) -> None:
    """Raise ValueError for what is neither None, a name, nor a provider."""
    if not (offset is None or isinstance(offset, Offset)):
        check_choice("offset", offset, tuple(_MAKERS))


def offset_table(offset: str | Offset | None, counts: NDArray[Any]) -> Tensor | None:
    """(C, C) o_yj, or None where nothing is added.

    Args:
        offset: by name, with the provider's own strength, or a provider of isda.losses.long_tail for these classes.
        counts: (C,) how often each class occurs.

    Example:
        >>> import numpy as np
        >>> offset_table("logit-adjustment", np.array([90, 10])).exp()
        tensor([[1.0000, 0.1111],
                [9.0000, 1.0000]], dtype=torch.float64)
    """
    if offset is None:
        return None
    sizes = torch.from_numpy(counts).double()
    provider = _MAKERS[offset](sizes) if isinstance(offset, str) else offset
    if provider.num_classes != len(sizes):
        raise ValueError(f"offset must be for {len(sizes)} classes, got one for {provider.num_classes}")
    with torch.no_grad():
        return provider.rows(torch.arange(len(sizes))).detach().cpu().double()
