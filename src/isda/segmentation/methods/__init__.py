"""The methods of `isda segment train`, one file each."""

from __future__ import annotations

from isda.engine.named_method import find_named
from isda.segmentation.methods.base import Head, PixelOptions, SegmentationMethod
from isda.segmentation.methods.cross_entropy import CrossEntropy
from isda.segmentation.methods.isda import ISDA, ISDATilted

__all__ = ["METHODS", "Head", "PixelOptions", "SegmentationMethod", "find_method"]

METHODS: dict[str, type[SegmentationMethod]] = {method.name: method for method in (CrossEntropy, ISDA, ISDATilted)}


def find_method(name: str) -> type[SegmentationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_named(name, METHODS, SegmentationMethod)  # type: ignore[type-abstract]
