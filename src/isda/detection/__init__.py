"""Detection and instance segmentation as a task of the engine: boxes and masks of objects, on COCO's terms."""
