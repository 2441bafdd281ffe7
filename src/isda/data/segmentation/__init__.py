"""Images whose every pixel has a class: Cityscapes, CamVid's layout, and any folder of images and label PNGs."""

from isda.data.segmentation.dataset import IGNORED, Pair, Part, SegmentationData
from isda.data.segmentation.loading import load

__all__ = ["IGNORED", "Pair", "Part", "SegmentationData", "load"]
