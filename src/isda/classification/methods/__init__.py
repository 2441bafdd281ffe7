"""The supervised methods of `isda train`, one file each."""

from __future__ import annotations

from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.center import Center
from isda.classification.methods.class_balanced import ClassBalanced
from isda.classification.methods.confidence_penalty import ConfidencePenalty
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.cutmix import CutMix, CutMixISDA
from isda.classification.methods.distribution_net import DistributionNet
from isda.classification.methods.disturb_label import DisturbLabel
from isda.classification.methods.explicit import Explicit
from isda.classification.methods.focal import Focal
from isda.classification.methods.isda import ISDA, ISDATilted
from isda.classification.methods.label_smoothing import LabelSmoothing
from isda.classification.methods.large_margin import LargeMargin
from isda.classification.methods.ldam import LDAM
from isda.classification.methods.logit_adjustment import LogitAdjustmentMethod
from isda.classification.methods.long_tail import LongTailMethod
from isda.classification.methods.loss_method import LossMethod
from isda.classification.methods.lq import Lq
from isda.classification.methods.manifold_mixup import ManifoldMixup, ManifoldMixupISDA
from isda.classification.methods.metasaug import MetaSAug
from isda.classification.methods.mixup import Mixup, MixupISDA
from isda.classification.methods.on_isda import with_isda
from isda.classification.methods.risda import RISDA
from isda.classification.methods.sam import SAM, SAMISDA
from isda.classification.methods.semantic_options import ISDAOptions
from isda.engine.named_method import find_named

__all__ = ["METHODS", "ClassificationMethod", "ISDAOptions", "find_method"]

_METHODS: tuple[type[ClassificationMethod], ...] = (CrossEntropy, ISDA, ISDATilted, Explicit)
_LOSSES: tuple[type[LossMethod], ...] = (LabelSmoothing, DisturbLabel, Focal, Lq, ConfidencePenalty, Center)
_OTHERS: tuple[type[ClassificationMethod], ...] = (LargeMargin, DistributionNet, Mixup, CutMix, ManifoldMixup, SAM)
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
    return find_named(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
