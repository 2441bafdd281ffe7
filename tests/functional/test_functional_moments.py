"""Means and scatter matrices of a stream against the batch covariance, on every code path of the update."""

from __future__ import annotations

import pytest
import torch

from isda.functional import grouping
from isda.functional import moments as device_moments
from isda.functional.grouping import group_rows
from isda.functional.moments import (
    absorb_means,
    absorb_means_on_device,
    add_outer_products,
    add_outer_products_on_device,
    add_squares,
)
from oracles import batch_covariance, batch_mean
from pretend_accelerator import on_pretend

DIM = 5


class State:
    """Count, mean and scatter of C classes, fed through the functions under test."""

    def __init__(
        self, num_classes: int, dim: int = DIM, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> None:
        self.count = torch.zeros(num_classes, dtype=torch.int64, device=device)
        self.origin = torch.zeros(num_classes, dim, dtype=dtype, device=device)
        self.offset = torch.zeros_like(self.origin)
        self.scatter = torch.zeros(num_classes, dim, dim, dtype=dtype, device=device)
        self.squares = torch.zeros_like(self.origin)

    def feed(self, features, targets, *, mask=None, waiting=True):
        """Absorb a batch in the way of the CPU, or in that of devices that must not wait."""
        if waiting:
            if mask is not None:
                features, targets = features[mask], targets[mask]
            groups = group_rows(targets, len(self.count))
            new = torch.tensor(groups.sizes)
            old = self.count[groups.classes]
            rows = absorb_means(features, groups, old, new, self.origin, self.offset)
            add_outer_products(self.scatter, rows, groups)
            self.count.index_add_(0, groups.classes, new)
        else:
            groups = group_rows(targets, len(self.count), exact=False)
            rows, new, _ = absorb_means_on_device(features, targets, mask, self.count, self.origin, self.offset)
            add_outer_products_on_device(self.scatter, rows, groups)
            self.count += new
        add_squares(self.squares, rows, groups)

    def check(self, features, targets, tolerance):
        for name, value in vars(self).items():
            setattr(self, name, value.cpu())
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
    "a long class": lambda: torch.tensor([1] * 60 + [4, 0, 2, 3]),
    "many rows": lambda: torch.randint(6, (17,)),
    "more classes than rows": lambda: torch.tensor([5, 1, 1, 3]),
}


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("labels", LABELS)
def test_two_batches_equal_the_batch_covariance(labels, waiting):
    state, seen = State(num_classes=6), []
    for _ in range(2):
        targets = LABELS[labels]()
        features = torch.randn(len(targets), DIM, dtype=torch.float64)
        state.feed(features, targets, waiting=waiting)
        seen.append((features, targets))
    state.check(torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen]), 1e-12)


@pytest.mark.parametrize("labels", LABELS)
def test_on_an_accelerator_two_batches_equal_the_batch_covariance(labels, accelerator):
    seen = []
    with accelerator:
        state = State(num_classes=6, device="pretend")
        for _ in range(2):
            targets = LABELS[labels]()
            features = torch.randn(len(targets), DIM, dtype=torch.float64) + 2
            state.feed(on_pretend(features), on_pretend(targets), waiting=False)
            seen.append((features, targets))
        assert accelerator.waits == []
        state.check(torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen]), 1e-12)


@pytest.mark.parametrize("workspace", [1, 500])
@pytest.mark.parametrize("labels", LABELS)
def test_products_in_tiles_or_chunks_equal_those_in_one_piece(labels, workspace, monkeypatch):
    targets = LABELS[labels]()
    features = torch.randn(len(targets), DIM, dtype=torch.float64)
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(device_moments, "WORKSPACE_BYTES", workspace)
    state = State(num_classes=6)
    state.feed(features, targets, waiting=False)
    state.check(features, targets, 1e-12)


@pytest.mark.parametrize("waiting", [True, False])
def test_rows_outside_the_mask_do_not_count(waiting):
    state, seen = State(num_classes=4), []
    for _ in range(3):
        features, targets = torch.randn(8, DIM, dtype=torch.float64) + 3, torch.randint(1, 4, (8,))
        mask = torch.rand(8) < 0.6
        spoiled = torch.where(mask.unsqueeze(1), features, torch.nan)
        state.feed(spoiled, targets, mask=mask, waiting=waiting)
        seen.append((features[mask], targets[mask]))
    state.check(torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen]), 1e-12)


def test_where_every_class_is_known_to_be_seen_nothing_changes():
    features, targets = torch.randn(9, DIM, dtype=torch.float64), torch.arange(9) % 3
    states = [[torch.zeros(3, DIM, dtype=torch.float64) for _ in range(2)] for _ in range(2)]
    for known, (origin, offset) in zip((False, True), states, strict=True):
        absorb_means_on_device(features, targets, None, torch.zeros(3, dtype=torch.int64), origin, offset)
        absorb_means_on_device(features + 1, targets, None, torch.full((3,), 3), origin, offset, all_seen=known)
    for ours, theirs in zip(*states, strict=True):
        assert torch.equal(ours, theirs)


def test_classes_that_do_not_occur_keep_their_state_to_the_bit():
    state = State(num_classes=5)
    state.feed(torch.randn(10, DIM, dtype=torch.float64), torch.arange(5).repeat(2))
    before = [t.clone() for t in (state.origin, state.offset, state.scatter, state.squares)]
    state.feed(torch.randn(6, DIM, dtype=torch.float64), torch.tensor([1, 3] * 3), waiting=False)
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


@pytest.mark.parametrize("waiting", [True, False])
def test_large_means_lose_nothing_in_float32(waiting):
    features, targets = (torch.randn(64, DIM) + 1e4), torch.randint(3, (64,))
    state = State(num_classes=3, dtype=torch.float32)
    for part in torch.arange(64).split(5):
        state.feed(features[part], targets[part], waiting=waiting)
    state.check(features, targets, 1e-4)
