"""Supervised training methods by name."""

from __future__ import annotations

from isda.lab.engine.method import find_method_class
from isda.lab.tasks.classification.methods.base import ClassificationMethod, CombinableMethod, CrossEntropy
from isda.lab.tasks.classification.methods.feature_losses import Center, DistributionNetMethod, LargeMargin
from isda.lab.tasks.classification.methods.isda import ISDA, ExplicitMethod, ISDATilted, with_isda
from isda.lab.tasks.classification.methods.long_tail import LDAM, RISDA, ClassBalanced, LogitAdjustmentMethod, MetaSAug
from isda.lab.tasks.classification.methods.losses import LOSS_METHODS
from isda.lab.tasks.classification.methods.mixing import CutMix, ManifoldMixup, Mixup
from isda.lab.tasks.classification.methods.sam import SAM

__all__ = ["METHODS", "ClassificationMethod", "find_method"]

_SINGLE: tuple[type[ClassificationMethod], ...] = (CrossEntropy, ISDA, ISDATilted, ExplicitMethod)
_FEATURES: tuple[type[ClassificationMethod], ...] = (LargeMargin, DistributionNetMethod)
_LOSSES: tuple[type[CombinableMethod], ...] = (*LOSS_METHODS, Center)
_OTHERS: tuple[type[CombinableMethod], ...] = (Mixup, CutMix, ManifoldMixup, SAM)
_LONG_TAIL: tuple[type[CombinableMethod], ...] = (LogitAdjustmentMethod, LDAM, ClassBalanced)
_ISDA_VARIANTS: tuple[type[ClassificationMethod], ...] = (RISDA, MetaSAug)

METHODS: dict[str, type[ClassificationMethod]] = {
    method.name: method
    for method in (
        *(*_SINGLE, *_LOSSES, *_FEATURES, *_OTHERS, *map(with_isda, (*_LOSSES, *_OTHERS))),
        *(*_LONG_TAIL, *map(with_isda, _LONG_TAIL), *_ISDA_VARIANTS),
    )
}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_method_class(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
