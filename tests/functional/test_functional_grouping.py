"""Rows grouped by class: the exact variant of the host and the static variant of devices that must not wait."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isda.functional import grouping
from isda.functional.grouping import group_rows


@st.composite
def labels(draw):
    num_classes = draw(st.integers(1, 12))
    rows = draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=40))
    return torch.tensor(rows), num_classes


@given(labels())
def test_exact_groups_hold_just_the_classes_that_occur(case):
    targets, num_classes = case
    groups = group_rows(targets, num_classes)
    assert groups.classes.tolist() == sorted(set(targets.tolist()))
    assert [groups.classes.tolist()[s] for s in groups.slot.tolist()] == targets.tolist()


@given(labels())
def test_static_groups_have_a_size_known_beforehand_and_the_same_rows_per_class(case):
    targets, num_classes = case
    exact, static = group_rows(targets, num_classes), group_rows(targets, num_classes, exact=False)
    assert len(static.classes) == min(num_classes, len(targets))
    for groups in (exact, static):
        assert groups.classes[groups.slot].tolist() == targets.tolist()
    assert set(exact.classes.tolist()) <= set(static.classes.tolist())


@given(case=labels())
def test_order_sorts_by_slot_and_keeps_the_order_within_a_slot(case):
    targets, num_classes = case
    groups = group_rows(targets, num_classes)
    slots = groups.slot.tolist()
    assert groups.order.tolist() == sorted(range(len(slots)), key=lambda i: (slots[i], i))
    assert groups.sizes == [slots.count(k) for k in range(len(groups.classes))]
    rows = torch.arange(len(slots))
    assert rows[groups.order][groups.inverse_order].tolist() == rows.tolist()


@given(length=st.integers(0, 50), row_bytes=st.integers(1, 40), limit=st.integers(1, 100))
def test_chunks_cover_the_range_within_the_workspace(length, row_bytes, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "WORKSPACE_BYTES", limit)
        parts = list(grouping.chunks(length, row_bytes))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(length))
    assert all(part.stop - part.start == 1 or (part.stop - part.start) * row_bytes <= limit for part in parts)
    assert all((part.stop - part.start + 1) * row_bytes > limit for part in parts[:-1])  # no more of them than needed


def test_rows_without_bytes_are_one_chunk():
    assert list(grouping.chunks(7, 0)) == [slice(0, 7)]
