"""The supervised methods of `isda train`, one file each."""

from __future__ import annotations

from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.cutmix import CutMix, CutMixISDA
from isda.classification.methods.explicit import Explicit
from isda.classification.methods.isda import ISDA, ISDATilted
from isda.classification.methods.manifold_mixup import ManifoldMixup, ManifoldMixupISDA
from isda.classification.methods.mixup import Mixup, MixupISDA
from isda.classification.methods.sam import SAM, SAMISDA
from isda.classification.methods.semantic_options import ISDAOptions
from isda.engine.named_method import find_named

__all__ = ["METHODS", "ClassificationMethod", "ISDAOptions", "find_method"]

METHODS: dict[str, type[ClassificationMethod]] = {
    method.name: method
    for method in (
        CrossEntropy,
        ISDA,
        ISDATilted,
        Explicit,
        Mixup,
        MixupISDA,
        CutMix,
        CutMixISDA,
        ManifoldMixup,
        ManifoldMixupISDA,
        SAM,
        SAMISDA,
    )
}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_named(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
