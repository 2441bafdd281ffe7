"""The supervised methods of `isda train`, one file each."""

from __future__ import annotations

from isda.choices import check_choice
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.isda import ISDA, ISDATilted
from isda.classification.methods.isda_options import ISDAOptions
from isda.engine.naming import load_named

__all__ = ["METHODS", "ClassificationMethod", "ISDAOptions", "find_method"]

METHODS: dict[str, type[ClassificationMethod]] = {method.name: method for method in (CrossEntropy, ISDA, ISDATilted)}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    if "." in name:
        method = load_named(name, ClassificationMethod, "method")  # type: ignore[type-abstract]
        if not hasattr(method, "name"):
            method.name = name
        return method
    return METHODS[check_choice("method", name, METHODS)]
