"""Interactive page to move features along class directions, served locally: `isda explore`."""

from isda.lab.analysis.explorer.application import make_application
from isda.lab.analysis.explorer.scene import MovedFeature, Plane, Scene, class_plane

__all__ = ["MovedFeature", "Plane", "Scene", "class_plane", "make_application"]
