"""Directions in which the features of a class vary, shown by training images: `isda directions`."""

from isda.lab.analysis.directions.atlas import Atlas, ClassView, DirectionView, JudgedEnds, judge_ends, make_atlas
from isda.lab.analysis.directions.eigenvectors import Directions, Landing, class_directions, land, nearest

__all__ = [
    "Atlas",
    "ClassView",
    "DirectionView",
    "Directions",
    "JudgedEnds",
    "Landing",
    "class_directions",
    "judge_ends",
    "land",
    "make_atlas",
    "nearest",
]
