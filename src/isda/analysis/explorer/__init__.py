"""A page on this machine to move along the directions of a run's classes by hand: `isda explore`."""

from isda.analysis.explorer.application import make_application
from isda.analysis.explorer.plane import Plane, class_plane
from isda.analysis.explorer.scene import Scene, View

__all__ = ["Plane", "Scene", "View", "class_plane", "make_application"]
