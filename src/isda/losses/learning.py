"""What the statistics of a criterion take from a batch: its features, and for confusions its logits; once each."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from isda.checks import warn
from isda.covariance import ConfusionCovariance, CovarianceModel, OnlineCovariance
from isda.devices import on_host
from isda.functional.grouping import Groups
from isda.functional.patches import dense
from isda.losses.inputs import Batch
from isda.losses.spatial import as_rows, resize_logits

__all__ = ["RepeatMonitor", "learn"]

_ABLE = (CovarianceModel.update, OnlineCovariance.update)
"""Updates that take patches as they are."""


def learn(covariance: CovarianceModel, batch: Batch, groups: Groups, align_corners: bool) -> None:
    """Update the model with a batch.

    Args:
        covariance: the model.
        batch: a call's input, with features.
        groups: its rows by class.
        align_corners: how logits are resized to the features (F.interpolate).
    """
    with covariance.withdrawing():
        if batch.features is None:
            raise ValueError("batch must hold the features to learn from, got none")
        known = groups if batch.counts is None or not on_host(batch.classes) else None
        absorbed = batch.features if type(covariance).update in _ABLE else dense(batch.features)
    covariance.update(absorbed, batch.classes, mask=batch.counts, groups=known)
    if isinstance(covariance, ConfusionCovariance):
        shown = as_rows(resize_logits(batch.logits, batch.grid, align_corners))
        covariance.observe(shown, batch.classes, batch.counts)


class RepeatMonitor:
    """Warns, once, of a second pass over a batch that counts again: sharpness-aware minimisation without ``held``.

    It is told by the very same targets in two calls in a row, between which the weight has changed, but no optimizer of
    torch has made a step. Nothing is read from a device. Scripts that move weights by hand are left alone: there has to
    be a step before.
    """

    def __init__(self) -> None:
        self._targets: weakref.ref[Tensor] | None = None
        self._versions, self._steps, self._warned = (0, 0), 0, False
        self._first = _OptimizerSteps.count_from_now()

    def __reduce__(self) -> tuple[type[RepeatMonitor], tuple[()]]:
        """A copy has seen no targets."""
        return (RepeatMonitor, ())

    def check(self, targets: Tensor, weight: Tensor) -> None:
        """Look at a call that counts: its targets as given, and the weight of the classifier."""
        if self._warned or targets.is_inference() or weight.is_inference():
            return
        versions, steps = (targets._version, weight._version), _OptimizerSteps.number
        same = self._targets is not None and self._targets() is targets and self._versions[0] == versions[0]
        if same and self._versions[1] != versions[1] and self._steps == steps > self._first:
            self._warned = True
            warn(
                "the statistics count the same batch twice: the weights changed between two passes over the same "
                "targets, but no optimizer made a step; put the second pass of sharpness-aware minimisation, and "
                "further evaluations of a closure, into `with criterion.held():`"
            )
        self._targets, self._versions, self._steps = weakref.ref(targets), versions, steps


class _OptimizerSteps:
    """How many steps the optimizers of torch have made since the first criterion was made."""

    number = 0
    _counted = False

    @classmethod
    def count_from_now(cls) -> int:
        if not cls._counted:
            cls._counted = True
            register_optimizer_step_post_hook(cls._count)
        return cls.number

    @classmethod
    def _count(cls, *_: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled step would be compiled again for every number
            cls.number += 1
