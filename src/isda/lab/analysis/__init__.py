"""Analyses of finished runs: directions, inversion, feature maps, tightness, studies.

Most start from `observe`, which computes the features of a run's training images.
"""

from isda.lab.analysis.training_features import Observed, observe

__all__ = ["Observed", "observe"]
