"""Supervised training methods by name; semi-supervised ones are in `isda.lab.methods.semi`."""

from __future__ import annotations

from isda.lab.engine.method import find_method_class
from isda.lab.methods.base import ClassificationMethod, CombinableMethod, CrossEntropy
from isda.lab.methods.feature_losses import Center, DistributionNetMethod, LargeMargin
from isda.lab.methods.isda import ISDA, ExplicitMethod, ISDATilted, with_isda
from isda.lab.methods.losses import LOSS_METHODS
from isda.lab.methods.mixup import Mixup

__all__ = ["METHODS", "ClassificationMethod", "find_method"]

_COMBINABLE: tuple[type[CombinableMethod], ...] = (*LOSS_METHODS, Center, Mixup)
_SINGLE: tuple[type[ClassificationMethod], ...] = (
    *(CrossEntropy, ISDA, ISDATilted, ExplicitMethod),
    *(LargeMargin, DistributionNetMethod),
)

METHODS: dict[str, type[ClassificationMethod]] = {
    method.name: method for method in (*_SINGLE, *_COMBINABLE, *map(with_isda, _COMBINABLE))
}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_method_class(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
