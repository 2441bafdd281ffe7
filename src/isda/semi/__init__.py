"""Semi-supervised learning: Pi-model, temporal ensembling, mean teacher, VAT and FixMatch, with and without ISDA.

`create` makes a method by name with the settings of its publication; `SemiSupervised` puts one together by hand.
"""

from isda.semi.batch import UnlabelledBatch
from isda.semi.batch_norm import frozen_batch_norm
from isda.semi.defaults import defaults_for, inputs_for
from isda.semi.distance import entropy, kl_divergence, mean_squared_error
from isda.semi.fixmatch import FixMatch
from isda.semi.mean_teacher import MeanTeacher, averaging_decay
from isda.semi.methods import NAMES, create
from isda.semi.objective import Losses, SemiSupervised
from isda.semi.pi_model import PiModel
from isda.semi.ramps import RampedWeight, gaussian_ramp_down, gaussian_ramp_up, linear_ramp_up
from isda.semi.regulariser import Regulariser
from isda.semi.temporal_ensembling import TemporalEnsembling
from isda.semi.vat import VAT

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
