"""ISDA as a method of training, with the published bound and with the tilted one."""

from __future__ import annotations

from typing import Any

from isda.classification.methods.semantic import SemanticMethod
from isda.classification.methods.semantic_options import ISDAOptions
from isda.engine.recipe import Recipe
from isda.losses import ISDALoss

__all__ = ["ISDA", "ISDATilted"]


class ISDA(SemanticMethod):
    """The bound of Prop. 1, attached to the network's classifier; its strength grows over the whole run."""

    name = "isda"
    Options = ISDAOptions
    criterion_type = ISDALoss
    term = "isda"

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The paper's strength, covariance and bound for the network."""
        return super().defaults(recipe, lambda_0) | {"bound": "jensen"}


class ISDATilted(ISDA):
    """The same with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base
