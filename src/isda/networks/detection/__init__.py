"""Detectors of two stages on a feature pyramid: Faster, Mask and Cascade R-CNN, on any backbone.

torchvision is imported with this room: it takes longer to import than the rest of this package.
"""

from isda.networks.detection.detectors import Detector, create, has_masks, names
from isda.networks.detection.weights import load_backbone_weights

__all__ = ["Detector", "create", "has_masks", "load_backbone_weights", "names"]
