"""Shared by the integrations: a criterion for one training of a library, and what its log gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from isda.criterion import AugmentedLoss


def attached(
    kind: type[AugmentedLoss],
    model: nn.Module,
    lambda_0: float,
    total_steps: int,
    settings: Mapping[str, Any],
    state: Mapping[str, Tensor] | None = None,
) -> AugmentedLoss:
    """A criterion of a model, that goes on from a state."""
    if settings.get("covariance") == "learned":
        raise ValueError("covariance='learned' needs an optimizer of its parameters: write the training loop yourself")
    criterion = kind.attach(model, lambda_0, total_steps, **settings)
    if state:
        criterion.load_state_dict(state)
    return criterion


def measures(criterion: AugmentedLoss, prefix: str = "isda_") -> dict[str, Tensor]:
    """The strength lambda and the mean variance of the margins in the latest call, by their names in a log."""
    values = {"strength": criterion.current_strength(), "margin_variance": criterion.margin_variance}
    return {prefix + name: value for name, value in values.items() if value is not None}
