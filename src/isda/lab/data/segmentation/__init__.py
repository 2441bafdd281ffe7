"""Images with a class per pixel: Cityscapes, CamVid's layout, and any folder of images and label PNGs."""

from isda.lab.data.segmentation.dataset import IGNORED, SegmentationData, SegmentationPair, SegmentationPart
from isda.lab.data.segmentation.layouts import load

__all__ = ["IGNORED", "SegmentationData", "SegmentationPair", "SegmentationPart", "load"]
