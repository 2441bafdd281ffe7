"""Semi-supervised learning: Pi-model, temporal ensembling, mean teacher and VAT, with and without ISDA.

`create` makes a method by name with the settings of its publication; `SemiSupervised` puts one together by hand.
"""

from isda.lab.methods.semi.base import (
    Regulariser,
    UnlabelledBatch,
    entropy,
    frozen_batch_norm,
    kl_divergence,
    mean_squared_error,
)
from isda.lab.methods.semi.defaults import (
    RampedWeight,
    defaults_for,
    gaussian_ramp_down,
    gaussian_ramp_up,
    inputs_for,
    linear_ramp_up,
)
from isda.lab.methods.semi.methods import NAMES, create
from isda.lab.methods.semi.objective import Losses, SemiSupervised
from isda.lab.methods.semi.regularisers import VAT, MeanTeacher, PiModel, TemporalEnsembling, averaging_decay

__all__ = [
    "NAMES",
    "VAT",
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
