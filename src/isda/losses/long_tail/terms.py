"""Where the providers meet the logits: what shifts and offsets add to the margins of a batch."""

from __future__ import annotations

from torch import Tensor

from isda.covariance import CovarianceModel
from isda.functional.grouping import Groups
from isda.functional.long_tail import mean_shift
from isda.losses.inputs import Batch
from isda.losses.long_tail.providers import MeanShift, Offset
from isda.losses.spatial import resize_rows

__all__ = ["check_providers", "margin_terms"]


def check_providers(offset: object, shift: object, covariance: CovarianceModel) -> None:
    """Refuse what provides no offsets or shifts, or not for these classes."""
    if not (offset is None or isinstance(offset, Offset)):
        raise ValueError(f"offset must be an isda.losses.long_tail.Offset, got {type(offset).__name__}")
    if offset is not None and offset.num_classes != covariance.num_classes:
        raise ValueError(f"offset must be for {covariance.num_classes} classes, got one for {offset.num_classes}")
    if not (shift is None or isinstance(shift, MeanShift)):
        raise ValueError(f"shift must be an isda.losses.long_tail.MeanShift, got {type(shift).__name__}")
    if shift is not None:
        shift.check(covariance)


def margin_terms(
    offset: Offset | None,
    shift: MeanShift | None,
    share: float,
    model: CovarianceModel,
    batch: Batch,
    groups: Groups,
    align_corners: bool,
) -> Tensor | None:
    """(N, C, ...) alpha (w_j - w_y)' delta_y + o_yj for the logits of a batch, or None where nothing is added.

    Args:
        offset: provider of o.
        shift: provider of delta.
        share: of the shift's alpha.
        model: what the shift is made from.
        batch: a call's input; the class y is that of a row of its features.
        groups: the rows by class.
        align_corners: how the terms are upsampled where logits are finer than features.
    """
    table = None if offset is None else offset.rows(groups.classes)
    if shift is not None and shift.alpha * share > 0:
        weight = model.as_statistics(batch.weight)
        moved = shift.alpha * share * mean_shift(weight, shift.vectors(model), groups.classes)
        table = moved if table is None else moved + table.to(moved.dtype)
    if table is None:
        return None
    terms = table if groups.one_slot_per_row else table.index_select(0, groups.slot)
    if batch.counts is not None:
        terms = terms * batch.counts.unsqueeze(1)  # an ignored pixel is mixed with its neighbours
    return resize_rows(terms, batch.grid, batch.logits, align_corners)
