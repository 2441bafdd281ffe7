"""What the statistics of a criterion take from a batch: its features, and for confusions its logits."""

from __future__ import annotations

from isda.covariance import ConfusionCovariance, CovarianceModel, OnlineCovariance
from isda.devices import on_host
from isda.functional.grouping import Groups
from isda.functional.patches import dense
from isda.losses.inputs import Batch
from isda.losses.spatial import as_rows, resize_logits

__all__ = ["learn"]

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
