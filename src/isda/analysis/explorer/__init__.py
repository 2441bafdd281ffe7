"""Interactive page to move features along class directions, served locally: `isda explore`."""

from isda.analysis.explorer.application import make_application
from isda.analysis.explorer.scene import MovedFeature, Plane, Scene, class_plane

__all__ = ["MovedFeature", "Plane", "Scene", "class_plane", "make_application"]
