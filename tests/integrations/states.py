"""How far two trainings are apart."""

from __future__ import annotations

from torch import Tensor, nn


def largest_difference(one: nn.Module | dict[str, Tensor], other: nn.Module | dict[str, Tensor]) -> float:
    """Over all tensors of two state_dicts of the same names, as a share of the tensor's largest value where above 1."""
    first, second = (state.state_dict() if isinstance(state, nn.Module) else state for state in (one, other))
    assert first.keys() == second.keys()
    return max(_difference(first[name].double(), second[name].double()) for name in first)


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max().clamp_min(1))
