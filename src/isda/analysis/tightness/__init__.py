"""How tight the bounds are that ISDA minimises: beside the expectation itself, over a run or over strengths."""

from isda.analysis.tightness.bounds import Bounds, measure_bounds
from isda.analysis.tightness.history import Moment, bounds_at, bounds_over_training

__all__ = ["Bounds", "Moment", "bounds_at", "bounds_over_training", "measure_bounds"]
