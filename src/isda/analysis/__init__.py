"""Looking into finished runs: directions, inversion, maps of features, tightness, studies of a method's parts.

Everything here starts from `observe`, which opens a run folder and says what its network makes of its training images.
"""

from isda.analysis.observing import Observed, observe

__all__ = ["Observed", "observe"]
