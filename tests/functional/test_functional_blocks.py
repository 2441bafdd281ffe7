"""The statistics update by blocks of rows against the batch covariance, and when it is chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isda.covariance import FullCovariance
from isda.functional.moments import Blocks
from oracles import batch_covariance, batch_mean

DIM = 5


def feed(batches, num_classes, dtype=torch.float64):
    count = torch.zeros(num_classes, dtype=torch.int64)
    origin, offset = torch.zeros(2, num_classes, DIM, dtype=dtype)
    scatter = torch.zeros(num_classes, DIM, DIM, dtype=dtype)
    for features, targets in batches:
        blocks = Blocks(targets, num_classes)
        blocks.absorb(features.to(dtype), count, origin, offset, scatter)
        count += torch.from_numpy(blocks.sizes)
    return origin + offset, scatter / count.clamp_min(1).view(-1, 1, 1)


@given(
    labels=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_batches_equal_the_batch_covariance(labels, seed):
    generator = torch.Generator().manual_seed(seed)
    batches = [
        (torch.randn(len(y), DIM, dtype=torch.float64, generator=generator) + 3, torch.tensor(y)) for y in labels
    ]
    mean, covariance = feed(batches, num_classes=4)
    features, targets = torch.cat([f for f, _ in batches]), torch.cat([y for _, y in batches])
    torch.testing.assert_close(mean, batch_mean(features, targets, 4), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(covariance, batch_covariance(features, targets, 4), rtol=1e-10, atol=1e-10)


def test_float32_survives_a_large_mean():
    torch.manual_seed(0)
    batches = [(1e4 + torch.randn(30, DIM), torch.randint(3, (30,))) for _ in range(20)]
    _, covariance = feed(batches, num_classes=3, dtype=torch.float32)
    features, targets = torch.cat([f for f, _ in batches]).double(), torch.cat([y for _, y in batches])
    expected = batch_covariance(features, targets, 3)
    assert float((covariance - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_a_class_that_does_not_occur_keeps_its_state_to_the_bit():
    model = FullCovariance(3, DIM)
    model.update(torch.randn(9, DIM), torch.arange(3).repeat(3))
    before = {name: buffer[1].clone() for name, buffer in model.named_buffers()}
    targets = torch.tensor([0, 2, 0, 2])
    assert Blocks(targets, 3).is_worthwhile(DIM)
    model.update(torch.randn(4, DIM), targets)
    assert all(torch.equal(buffer[1], before[name]) for name, buffer in model.named_buffers())


def test_a_bad_row_that_nobody_checked_spoils_its_own_class_only():
    model = FullCovariance(3, DIM)
    model.validate = False
    features = torch.randn(9, DIM)
    features[1] = torch.nan
    model.update(features, torch.arange(3).repeat(3))
    assert torch.isfinite(model.scatter[[0, 2]]).all()
    assert torch.isnan(model.scatter[1]).any()


@pytest.mark.parametrize(
    ("targets", "num_classes", "dim", "pays"),
    [
        (torch.arange(10).repeat(12), 10, 640, True),
        (torch.arange(72).repeat(2), 100, 64, True),
        (torch.arange(72).repeat(2), 100, 640, False),  # too many large matrices would be visited for nothing
        (torch.arange(30).repeat(4), 100, 64, False),
        (torch.tensor([0] * 90 + [1, 2, 3]), 4, 64, True),
        (torch.tensor([0] * 90 + list(range(1, 10))), 10, 64, False),  # more padding than rows
        (torch.tensor([0] * 3000 + [1] * 1000), 2, 512, False),  # arithmetic on padding costs more than a call
    ],
)
def test_blocks_are_chosen_where_they_pay(targets, num_classes, dim, pays, monkeypatch):
    assert Blocks(targets, num_classes).is_worthwhile(dim) == pays
    calls, real = [], Blocks.absorb
    monkeypatch.setattr(Blocks, "absorb", lambda *args: (calls.append(args), real(*args)))
    model = FullCovariance(num_classes, dim)
    model.update(torch.randn(len(targets), dim), targets)
    assert len(calls) == pays
    assert model.count.tolist() == torch.bincount(targets, minlength=num_classes).tolist()


def test_decayed_counts_weigh_the_past_in_blocks_as_one_by_one(monkeypatch):
    torch.manual_seed(1)
    batches = [(torch.randn(8, DIM).double(), torch.arange(4).repeat(2)) for _ in range(5)]
    models = []
    for pays in (True, False):
        model = FullCovariance(4, DIM, decay=0.7, dtype=torch.float64)
        monkeypatch.setattr(Blocks, "is_worthwhile", lambda self, dim, pays=pays: pays)
        for features, targets in batches:
            model.update(features, targets)
        models.append(model)
    for mine, theirs in zip(models[0].buffers(), models[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
