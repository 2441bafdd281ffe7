"""Semi-supervised learning: Pi-model, temporal ensembling, mean teacher, VAT and FixMatch, with and without ISDA.

`create` makes a method by name with the settings of its publication; `SemiSupervised` puts one together by hand.
"""

from isda.lab.semi.base import (
    Regulariser,
    UnlabelledBatch,
    entropy,
    frozen_batch_norm,
    kl_divergence,
    mean_squared_error,
)
from isda.lab.semi.defaults import (
    RampedWeight,
    defaults_for,
    gaussian_ramp_down,
    gaussian_ramp_up,
    inputs_for,
    linear_ramp_up,
)
from isda.lab.semi.methods import NAMES, create
from isda.lab.semi.objective import Losses, SemiSupervised
from isda.lab.semi.regularisers import VAT, FixMatch, MeanTeacher, PiModel, TemporalEnsembling, averaging_decay

__all__ = [
    "NAMES",
    "VAT",
    "FixMatch",
    "Losses",
    "MeanTeacher",
    "PiModel",
    "RampedWeight",
    "Regulariser",
    "SemiSupervised",
    "TemporalEnsembling",
    "UnlabelledBatch",
    "averaging_decay",
    "create",
    "defaults_for",
    "entropy",
    "frozen_batch_norm",
    "gaussian_ramp_down",
    "gaussian_ramp_up",
    "inputs_for",
    "kl_divergence",
    "linear_ramp_up",
    "mean_squared_error",
]
