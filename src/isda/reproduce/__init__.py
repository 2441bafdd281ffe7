"""The paper's tables and figures, made again at any scale, beside its own numbers (docs/reproduce.md)."""

from isda.reproduce.registry import EXPERIMENTS, experiment_names, find_experiments
from isda.reproduce.running import Making, make_trainings
from isda.reproduce.scale import SCALES, Scale

__all__ = ["EXPERIMENTS", "SCALES", "Making", "Scale", "experiment_names", "find_experiments", "make_trainings"]
