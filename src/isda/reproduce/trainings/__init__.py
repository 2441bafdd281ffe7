"""The paper's trainings, by task: each knows itself at every scale."""

from isda.reproduce.trainings.classification import classifier
from isda.reproduce.trainings.detection import detector
from isda.reproduce.trainings.generation import generator
from isda.reproduce.trainings.segmentation import segmentation
from isda.reproduce.trainings.semi_supervised import semi_supervised

__all__ = ["classifier", "detector", "generator", "segmentation", "semi_supervised"]
