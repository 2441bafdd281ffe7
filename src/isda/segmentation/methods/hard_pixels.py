"""Online hard example mining: which pixels a network does not know yet (Shrivastava et al., 2016)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["hard_pixels"]


def hard_pixels(losses: Tensor, counted: Tensor, threshold: float, kept: int) -> Tensor:
    """Where the probability exp(-loss) of a pixel's class is at most ``threshold``, and the ``kept`` worst in any case.

    Args:
        losses: (N, H, W) cross-entropy of each pixel, or a bound of it.
        counted: (N, H, W) False where a pixel does not count, whatever its loss.
        threshold: largest probability of a hard pixel.
        kept: how many are kept at least; all where there are fewer.

    Example:
        >>> losses = torch.tensor([[[0.1, 0.2, 2.0, 9.0]]])
        >>> counted = torch.tensor([[[True, True, True, False]]])
        >>> hard_pixels(losses, counted, threshold=0.5, kept=1), hard_pixels(losses, counted, threshold=0.5, kept=2)
        (tensor([[[False, False,  True, False]]]), tensor([[[False,  True,  True, False]]]))
    """
    bound = torch.full_like(losses[0, 0, 0], -math.log(threshold))
    if kept < losses.numel():
        # Without counting on the host how many there are: those that do not count are the easiest.
        ranked = losses.masked_fill(~counted, -math.inf).flatten()
        bound = torch.minimum(bound, ranked.kthvalue(len(ranked) - kept + 1).values)
    else:
        bound = torch.full_like(bound, -math.inf)
    return counted & (losses >= bound)
