"""Object detection and instance segmentation in COCO's format."""
