"""Frequent directions: the guaranteed error of the sketch, in any order and any split of the stream."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isda.functional import grouping
from isda.functional.sketch import append_rows, shrink


def error_bounds_hold(rows: torch.Tensor, sketch: torch.Tensor, rank: int) -> None:
    """0 <= x' (X'X - B'B) x <= |X|_F^2 / (r + 1) for every unit vector x."""
    errors = torch.linalg.eigvalsh(rows.T @ rows - sketch.T @ sketch)
    energy = float(rows.square().sum())
    assert float(errors.min()) >= -1e-10 * energy
    assert float(errors.max()) <= energy / (rank + 1) * (1 + 1e-10)


@pytest.mark.parametrize("workspace", [1, 2**25])
@given(
    seed=st.integers(0, 2**31),
    rank=st.integers(1, 6),
    dim=st.integers(1, 10),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    spectrum=st.floats(0, 3),
    trend=st.floats(-2, 2),
)
def test_error_bound_holds_in_any_order(workspace, seed, rank, dim, sizes, spectrum, trend):
    generator = torch.Generator().manual_seed(seed)
    total, sketches = sum(sizes), 3
    scale = torch.arange(1, dim + 1, dtype=torch.float64) ** -spectrum
    rows = torch.randn(total, dim, generator=generator, dtype=torch.float64) * scale
    rows *= torch.logspace(0, trend, total, dtype=torch.float64).unsqueeze(1)  # later rows larger, or smaller
    index = torch.randint(sketches, (total,), generator=generator)
    sketch = torch.zeros(sketches, 2 * rank, dim, dtype=torch.float64)
    fill = torch.zeros(sketches, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "WORKSPACE_BYTES", workspace)
        for part in torch.arange(total).split(sizes):
            append_rows(sketch, fill, rows[part], index[part])
    assert (fill <= 2 * rank).all()
    for k in range(sketches):
        assert not sketch[k, fill[k] :].any()
        error_bounds_hold(rows[index == k], sketch[k], rank)


def test_rows_that_fit_are_stored_as_they_are():
    rows, index = torch.randn(5, 3), torch.tensor([1, 0, 1, 1, 0])
    sketch, fill = torch.zeros(2, 4, 3), torch.zeros(2, dtype=torch.int64)
    append_rows(sketch, fill, rows[:2], index[:2])
    append_rows(sketch, fill, rows[2:], index[2:])
    assert fill.tolist() == [2, 3]
    assert torch.equal(sketch[0, :2], rows[[1, 4]])
    assert torch.equal(sketch[1, :3], rows[[0, 2, 3]])


def test_rows_of_zeros_take_no_place():
    sketch, fill = torch.zeros(1, 4, 3), torch.zeros(1, dtype=torch.int64)
    rows = torch.zeros(10, 3)
    rows[7, 2] = 5
    append_rows(sketch, fill, rows, torch.zeros(10, dtype=torch.int64))
    assert fill.item() == 1
    assert torch.equal(sketch[0, 0], rows[7])


@pytest.mark.parametrize("spared", [0, 2])
@pytest.mark.parametrize("length", [6, 9])  # fewer rows than features, and more
def test_shrink_subtracts_the_first_dropped_eigenvalue_from_all_but_the_spared(length, spared):
    rows, rank = torch.randn(2, length, 7, dtype=torch.float64), 3
    for stack, small in zip(rows, shrink(rows, rank, spared), strict=True):
        assert small.shape == (rank + spared, 7)
        values, vectors = torch.linalg.eigh(stack.T @ stack)
        dropped, expected = values[-rank - spared - 1], torch.zeros(7, 7, dtype=torch.float64)
        for i in range(1, rank + spared + 1):
            value = values[-i] if i <= spared else values[-i] - dropped
            expected += value * torch.outer(vectors[:, -i], vectors[:, -i])
        torch.testing.assert_close(small.T @ small, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [3, 4, 8])
def test_shrink_loses_nothing_when_the_rank_is_at_least_the_dimension(rank):
    rows = torch.randn(1, 20, 3, dtype=torch.float64)
    small = shrink(rows, rank)
    assert small.shape == (1, rank, 3)
    torch.testing.assert_close(small.mT @ small, rows.mT @ rows, rtol=0, atol=1e-12)


def test_shrink_of_rows_of_low_rank_is_exact_and_finite():
    rows = torch.randn(1, 8, 2, dtype=torch.float64) @ torch.randn(2, 12, dtype=torch.float64)
    small = shrink(rows, 3)
    torch.testing.assert_close(small.mT @ small, rows.mT @ rows, rtol=0, atol=1e-10)
    assert not shrink(torch.zeros(1, 8, 12), 3).any()
