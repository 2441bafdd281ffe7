"""How far two trainings are apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXACT = 1e-9
"""What trainings in float64 may differ by: sums in another order differ by 1e-15, the tilted search stops at
eps**(3/4), and the few steps of these tests multiply either by less than 100. Other mathematics differs by 1e-3."""


def rounding_of(steps: int) -> float:
    """What trainings in float32 may differ by after so many steps: sums of up to 1,000 terms, in another order each."""
    return steps * 32 * torch.finfo(torch.float32).eps


def largest_difference(one: nn.Module | dict[str, Tensor], other: nn.Module | dict[str, Tensor]) -> float:
    """Over all tensors of two state_dicts of the same names, as a share of the tensor's largest value where above 1."""
    first, second = (state.state_dict() if isinstance(state, nn.Module) else state for state in (one, other))
    assert first.keys() == second.keys()
    return max(_difference(first[name].double(), second[name].double()) for name in first)


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max().clamp_min(1))
