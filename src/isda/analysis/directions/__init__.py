"""The directions in which the features of a class vary, shown by training images: `isda directions`."""

from isda.analysis.directions.atlas import Atlas, ClassView, DirectionView, make_atlas
from isda.analysis.directions.eigenvectors import Directions, class_directions
from isda.analysis.directions.judging import Judged, holm, judge_ends
from isda.analysis.directions.moving import Landing, land, nearest

__all__ = [
    "Atlas",
    "ClassView",
    "DirectionView",
    "Directions",
    "Judged",
    "Landing",
    "class_directions",
    "holm",
    "judge_ends",
    "land",
    "make_atlas",
    "nearest",
]
