"""Means and scatter matrices of a stream against the batch covariance, on every code path of the update."""

from __future__ import annotations

import pytest
import torch

from isda.functional import absorb_means, add_outer_products, add_squares, group_rows, grouping, moments
from oracles import batch_covariance, batch_mean

DIM = 5


class State:
    """Count, mean and scatter of C classes, fed through the functions under test."""

    def __init__(self, num_classes: int, dim: int = DIM, dtype: torch.dtype = torch.float64) -> None:
        self.count = torch.zeros(num_classes, dtype=torch.int64)
        self.origin = torch.zeros(num_classes, dim, dtype=dtype)
        self.offset = torch.zeros_like(self.origin)
        self.scatter = torch.zeros(num_classes, dim, dim, dtype=dtype)
        self.squares = torch.zeros_like(self.origin)

    def feed(self, features, targets, *, mask=None, exact=None, on_host=None):
        groups = group_rows(targets, len(self.count), exact=exact)
        here = torch.ones_like(targets) if mask is None else mask.long()
        new = torch.zeros_like(groups.classes).index_add_(0, groups.slot, here)
        old = self.count[groups.classes]
        rows = absorb_means(features, groups, old, new, self.origin, self.offset, mask)
        add_outer_products(self.scatter, rows, groups, on_host=on_host)
        add_squares(self.squares, rows, groups)
        self.count.index_add_(0, groups.classes, new)

    def check(self, features, targets, tolerance):
        expected = batch_covariance(features, targets, len(self.count))
        count = torch.bincount(targets, minlength=len(self.count))
        assert self.count.tolist() == count.tolist()
        scatter = expected * count.view(-1, 1, 1)
        close = {"rtol": tolerance, "atol": tolerance * float(scatter.max())}
        torch.testing.assert_close(self.scatter.double(), scatter, **close)
        torch.testing.assert_close(self.squares.double(), scatter.diagonal(dim1=1, dim2=2), **close)
        mean = batch_mean(features, targets, len(self.count))
        torch.testing.assert_close((self.origin + self.offset).double(), mean, rtol=tolerance, atol=tolerance)


LABELS = {
    "one by one": lambda: torch.tensor([1] * 60 + [4, 0, 2, 3]),
    "masked": lambda: torch.randint(6, (17,)),
}


@pytest.mark.parametrize("path", LABELS)
def test_two_batches_equal_the_batch_covariance(path, monkeypatch):
    calls, real = [], moments._add_masked
    monkeypatch.setattr(moments, "_add_masked", lambda *args: (calls.append("masked"), real(*args)))
    state, seen = State(num_classes=6), []
    for _ in range(2):
        targets = LABELS[path]()
        features = torch.randn(len(targets), DIM, dtype=torch.float64)
        state.feed(features, targets, on_host=False if path == "masked" else None)
        seen.append((features, targets))
    assert calls == (["masked"] * 2 if path == "masked" else [])
    state.check(torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen]), 1e-12)


@pytest.mark.parametrize("workspace", [1, 500])
def test_masked_products_in_chunks_equal_those_in_one_piece(workspace, monkeypatch):
    features, targets = torch.randn(9, DIM, dtype=torch.float64), torch.randint(6, (9,))
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", workspace)
    state = State(num_classes=6)
    state.feed(features, targets, exact=False, on_host=False)
    state.check(features, targets, 1e-12)


@pytest.mark.parametrize("exact", [None, False])
@pytest.mark.parametrize("on_host", [True, False])
def test_rows_outside_the_mask_do_not_count(exact, on_host):
    state, seen = State(num_classes=4), []
    for _ in range(3):
        features, targets = torch.randn(8, DIM, dtype=torch.float64) + 3, torch.randint(1, 4, (8,))
        mask = torch.rand(8) < 0.6
        state.feed(
            torch.where(mask.unsqueeze(1), features, 0),
            torch.where(mask, targets, 0),
            mask=mask,
            exact=exact,
            on_host=on_host,
        )
        seen.append((features[mask], targets[mask]))
    state.check(torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen]), 1e-12)


def test_classes_that_do_not_occur_keep_their_state_to_the_bit():
    state = State(num_classes=5)
    state.feed(torch.randn(10, DIM, dtype=torch.float64), torch.arange(5).repeat(2))
    before = [t.clone() for t in (state.origin, state.offset, state.scatter, state.squares)]
    state.feed(torch.randn(6, DIM, dtype=torch.float64), torch.tensor([1, 3] * 3), exact=False, on_host=False)
    for old, new in zip(before, (state.origin, state.offset, state.scatter, state.squares), strict=True):
        assert torch.equal(old[[0, 2, 4]], new[[0, 2, 4]])
        assert not torch.equal(old[[1, 3]], new[[1, 3]]) or new is state.origin


def test_origin_is_the_first_batch_mean_and_never_moves():
    state = State(num_classes=2)
    first = torch.randn(4, DIM, dtype=torch.float64)
    state.feed(first, torch.tensor([0, 0, 0, 0]))
    torch.testing.assert_close(state.origin[0], first.mean(0))
    origin = state.origin.clone()
    state.feed(torch.randn(3, DIM, dtype=torch.float64) + 7, torch.tensor([0, 0, 0]))
    assert torch.equal(state.origin, origin)


def test_many_rows_per_class_take_the_product_with_the_indicator():
    features, targets = torch.randn(8200, 130, dtype=torch.float64), torch.randint(3, (8200,))
    assert features.numel() > 2**20  # where moments._slot_sum changes its way
    state = State(num_classes=3, dim=130)
    state.feed(features, targets)
    for c in range(3):
        rows = features[targets == c]
        torch.testing.assert_close(state.scatter[c] / len(rows), torch.cov(rows.T, correction=0), rtol=0, atol=1e-12)
        torch.testing.assert_close((state.origin + state.offset)[c], rows.mean(0), rtol=0, atol=1e-12)


def test_large_means_lose_nothing_in_float32():
    features, targets = (torch.randn(64, DIM) + 1e4), torch.randint(3, (64,))
    state = State(num_classes=3, dtype=torch.float32)
    for part in torch.arange(64).split(5):
        state.feed(features[part], targets[part])
    state.check(features, targets, 1e-4)
