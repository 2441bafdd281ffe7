"""Two-stage detectors on a feature pyramid: Faster, Mask and Cascade R-CNN, on any backbone.

Importing this package imports torchvision.
"""

from isda.lab.networks.detection.backbone import load_backbone_weights
from isda.lab.networks.detection.detectors import Detector, create, has_masks, names

__all__ = ["Detector", "create", "has_masks", "load_backbone_weights", "names"]
