"""Trained generators, for whoever wants images from one: it stands below the tasks, and none of them trains here."""

from isda.generators.trained import TASK, TrainedGenerator, load_generator, make_images

__all__ = ["TASK", "TrainedGenerator", "load_generator", "make_images"]
