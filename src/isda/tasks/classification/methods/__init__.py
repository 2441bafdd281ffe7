"""Supervised training methods by name."""

from __future__ import annotations

from isda.engine.method import find_method_class
from isda.tasks.classification.methods.base import ClassificationMethod, CrossEntropy
from isda.tasks.classification.methods.feature_losses import Center, DistributionNetMethod, LargeMargin
from isda.tasks.classification.methods.isda import ISDA, ExplicitMethod, ISDATilted, with_isda
from isda.tasks.classification.methods.long_tail import (
    LDAM,
    RISDA,
    ClassBalanced,
    LogitAdjustmentMethod,
    LongTailMethod,
    MetaSAug,
)
from isda.tasks.classification.methods.losses import (
    ConfidencePenaltyMethod,
    DisturbLabelMethod,
    Focal,
    LabelSmoothingMethod,
    LossMethod,
    Lq,
)
from isda.tasks.classification.methods.mixing import (
    CutMix,
    CutMixISDA,
    ManifoldMixup,
    ManifoldMixupISDA,
    Mixup,
    MixupISDA,
)
from isda.tasks.classification.methods.sam import SAM, SAMISDA
from isda.tasks.common.isda_options import ISDAOptions

__all__ = ["METHODS", "ClassificationMethod", "ISDAOptions", "find_method"]

_METHODS: tuple[type[ClassificationMethod], ...] = (CrossEntropy, ISDA, ISDATilted, ExplicitMethod)
_LOSSES: tuple[type[LossMethod], ...] = (
    LabelSmoothingMethod,
    DisturbLabelMethod,
    Focal,
    Lq,
    ConfidencePenaltyMethod,
    Center,
)
_OTHERS: tuple[type[ClassificationMethod], ...] = (
    LargeMargin,
    DistributionNetMethod,
    Mixup,
    CutMix,
    ManifoldMixup,
    SAM,
)
_LONG_TAIL: tuple[type[LongTailMethod], ...] = (LogitAdjustmentMethod, LDAM, ClassBalanced)
_BORROWED: tuple[type[ClassificationMethod], ...] = (RISDA, MetaSAug)
_ON_ISDA: tuple[type[ClassificationMethod], ...] = (MixupISDA, CutMixISDA, ManifoldMixupISDA, SAMISDA)

METHODS: dict[str, type[ClassificationMethod]] = {
    method.name: method
    for method in (
        *(*_METHODS, *_LOSSES, *_OTHERS, *map(with_isda, _LOSSES), *_ON_ISDA),
        *(*_LONG_TAIL, *map(with_isda, _LONG_TAIL), *_BORROWED),
    )
}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_method_class(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
