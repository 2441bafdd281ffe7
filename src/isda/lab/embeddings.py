"""Features of images by a network, and how well probabilities predict: for `isda embed` and `isda classify`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CALIBRATION_BINS = 15
MIN_PROBABILITY = 1e-12
"""Lower bound of probabilities in the likelihood."""


def probability_measures(likely: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Error and expected calibration error in percent, and the mean log-likelihood; (N, K) probabilities, (N,) labels.

    Example:
        >>> measures = probability_measures(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
        >>> round(measures["log_likelihood"], 3)  # mean of log 0.5 and log 0.75
        -0.49
    """
    right, confidence = likely.argmax(1) == labels, likely.max(1)
    bins = np.ceil(confidence * CALIBRATION_BINS).astype(int)
    gaps = np.bincount(bins, confidence - right)
    own = np.maximum(likely[np.arange(len(labels)), labels], MIN_PROBABILITY)
    return {
        "error": 100 * float(1 - right.mean()),
        "log_likelihood": float(np.log(own).mean()),
        "calibration": 100 * float(np.abs(gaps).sum() / len(labels)),
    }
