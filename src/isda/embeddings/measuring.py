"""How good probabilities of classes are: error, log-likelihood and calibration."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from isda.classification.evaluation import Tally

__all__ = ["measures"]

LEAST = 1e-12
"""What a probability of 0 counts for in the likelihood."""


def measures(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Error and expected calibration error (15 bins) in percent, and the mean log-likelihood of the true classes.

    Args:
        probabilities: (N, C).
        labels: (N,) in 0..C-1.

    Example:
        >>> measures(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))["log_likelihood"]  # log of 0.5 and 0.75
        -0.490...
    """
    tally = Tally(probabilities.shape[1])
    floored = np.maximum(np.asarray(probabilities, dtype=np.float64), LEAST)
    tally.add(torch.from_numpy(floored).log(), torch.from_numpy(np.asarray(labels, dtype=np.int64)))
    found = tally.measures()
    return {"error": found["error"], "log_likelihood": -found["nll"], "calibration": found["calibration"]}
