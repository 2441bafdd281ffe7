"""Where the providers meet the logits: what shifts and offsets add to the margins of a batch."""

from __future__ import annotations

from torch import Tensor

from isda.covariance import CovarianceModel
from isda.functional.grouping import Groups
from isda.functional.long_tail import mean_shift
from isda.losses.long_tail.providers import MeanShift, Offset

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
    weight: Tensor,
    model: CovarianceModel,
    groups: Groups,
) -> Tensor | None:
    """(N, C) alpha (w_j - w_y)' delta_y + o_yj for the rows of a batch, or None where nothing is added.

    Args:
        offset: provider of o.
        shift: provider of delta.
        share: of the shift's alpha.
        weight: (C, A), for a shift.
        model: what the shift is made from.
        groups: the rows by class.
    """
    table = None if offset is None else offset.rows(groups.classes)
    if shift is not None and shift.alpha * share > 0:
        moved = shift.alpha * share * mean_shift(model.as_statistics(weight), shift.vectors(model), groups.classes)
        table = moved if table is None else moved + table.to(moved.dtype)
    if table is None or groups.one_slot_per_row:
        return table
    return table.index_select(0, groups.slot)
