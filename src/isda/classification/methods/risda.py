"""RISDA (Chen et al., AAAI 2022) as a method: covariances and means borrowed from the classes a class is taken for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isda.classification.config import Config
from isda.classification.methods.borrowed import BorrowedCovarianceMethod
from isda.classification.methods.long_tail import DeferredOptions
from isda.classification.methods.semantic_options import ISDAOptions
from isda.covariance import ConfusionCovariance, CovarianceModel
from isda.losses import ISDALoss
from isda.losses.long_tail import ConfusionShift
from isda.networks import Network

__all__ = ["RISDA", "RISDAOptions"]


@dataclass(frozen=True, kw_only=True)
class RISDAOptions(DeferredOptions, ISDAOptions):
    """What may follow ``risda:``, beside the options of ``isda:``."""

    drw: bool = True
    """Weigh classes by one over their effective number of images in the last part of the run."""
    alpha: float = 0.5
    """How far means are moved towards those of the classes a class is taken for, at full strength."""
    memory: float = 0.9
    """How much of the confusions of a class a batch leaves."""


class RISDA(BorrowedCovarianceMethod):
    """`isda.covariance.ConfusionCovariance` and `isda.losses.long_tail.ConfusionShift`."""

    name = "risda"
    Options = RISDAOptions

    def wrapped(self, base: CovarianceModel, options: RISDAOptions) -> CovarianceModel:
        """Mixed by the confusions."""
        return ConfusionCovariance(base, memory=options.memory)

    def isda_criterion(self, options: Any, network: Network, config: Config, **given: Any) -> ISDALoss:
        """With the shift of means."""
        return super().isda_criterion(options, network, config, shift=ConfusionShift(options.alpha), **given)
