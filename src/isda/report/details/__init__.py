"""What some tasks leave beside their figures: a figure for each class, and pictures.

A task writes ``"per_class": {"iou": {"road": 0.97, "train": null}}`` into result.json, and PNG files into the folder
``pictures`` of the run. Nothing in them is trusted.
"""
