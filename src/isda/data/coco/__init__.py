"""Images with boxes and masks in COCO's format: the official set, or any folder of images and JSON files."""

from isda.data.coco.annotations import CocoPart, ImageEntry, Marked, read_part
from isda.data.coco.loading import CocoData, load
from isda.data.coco.masks import decode_mask, encode_mask

__all__ = ["CocoData", "CocoPart", "ImageEntry", "Marked", "decode_mask", "encode_mask", "load", "read_part"]
