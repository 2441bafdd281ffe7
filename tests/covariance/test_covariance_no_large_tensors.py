"""Nothing of a training step grows like N x C x A, N x A x A or N x C x C: every tensor is seen as it is made."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from isda import ISDALoss, covariance
from isda.functional import grouping as workspace
from largest_tensor import LargestTensor

N, C, A = 256, 200, 512
LIMIT = 64_000_000


def largest_of_a_step(name, bound, targets, monkeypatch):
    """The largest tensor of forward and backward, and how many operations each of them ran."""
    monkeypatch.setattr(workspace, "_spare", {})  # no scratch memory left over from other tests
    generator = torch.Generator().manual_seed(0)
    criterion = ISDALoss(C, A, lambda_0=0.5, covariance=name, bound=bound, schedule="constant")
    features = torch.randn(N, A, generator=generator)
    weight = (torch.randn(C, A, generator=generator) / A**0.5).requires_grad_()
    logits = (features @ weight.detach().T).requires_grad_()
    criterion.covariance.update(features.flip(0), targets)
    statistics = list(criterion.covariance.buffers())
    with LargestTensor(statistics) as seen:
        loss = criterion(logits, targets, features=features, weight=weight)
        forward = seen.operations
        loss.backward()
    assert weight.grad.any()
    return seen, forward


@pytest.mark.parametrize("labels", ["random", "every class"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank"])
def test_no_tensor_above_64_megabytes_besides_the_statistics(name, bound, labels, monkeypatch):
    targets = torch.randint(C, (N,), generator=torch.Generator().manual_seed(1))
    if labels == "every class":
        targets = torch.arange(N) % C
    seen, forward = largest_of_a_step(name, bound, targets, monkeypatch)
    assert forward > 10  # both halves were watched
    assert seen.operations - forward > 5
    assert seen.largest >= 4 * N * A  # it did see the features
    assert seen.largest <= LIMIT, seen.where


@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank"])
def test_learning_many_small_classes_makes_no_tensor_above_64_megabytes(name):
    generator = torch.Generator().manual_seed(0)
    model = covariance.create(name, 1500, 128)
    features, targets = torch.randn(2048, 128, generator=generator), torch.randint(1500, (2048,), generator=generator)
    with LargestTensor(model.buffers()) as seen:
        model.update(features, targets)
    assert model.count.sum() == 2048
    assert seen.largest <= LIMIT, seen.where


MANY = ("diagonal", "within", "shared", "identity")
"""The models for very many classes."""


def step_with_many_classes(name, bound, num_classes, rows=64, dim=32):
    """A training step as a function, and its statistics."""
    generator = torch.Generator().manual_seed(0)
    criterion = ISDALoss(num_classes, dim, lambda_0=0.5, covariance=name, bound=bound, schedule="constant")
    features, targets = torch.randn(rows, dim, generator=generator), torch.arange(rows) * (num_classes // rows)
    weight = torch.randn(num_classes, dim, generator=generator, requires_grad=True)

    def step():
        criterion(features @ weight.t(), targets, features=features, weight=weight).backward()

    step()
    return step, list(criterion.covariance.buffers())


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("name", MANY)
def test_a_step_with_very_many_classes_makes_nothing_larger_than_the_logits(name, bound):
    step, statistics = step_with_many_classes(name, bound, 4000)
    with LargestTensor(statistics) as seen:
        step()
    assert seen.largest == 4 * 64 * 4000, seen.where  # N x C; a table C x C is 60 times as large, N x C x A 32 times


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("name", MANY)
def test_the_work_of_a_step_grows_linearly_with_the_number_of_classes(name, bound):
    flops = []
    for num_classes in (2000, 4000):
        step, _ = step_with_many_classes(name, bound, num_classes)
        with FlopCounterMode(display=False) as counter:
            step()
        flops.append(counter.get_total_flops())
    assert flops[0] > 2 * 64 * 2000 * 32  # it did count the products N x C x A
    assert flops[1] <= 2 * flops[0]


def test_the_watch_sees_a_backward_pass_that_is_too_large():
    weight = torch.randn(C, A, requires_grad=True)
    with LargestTensor([]) as seen:
        # The published formulation: N x C x A differences.
        loss = (weight.unsqueeze(0) - weight[torch.arange(N) % C].unsqueeze(1)).square().sum()
        loss.backward()
    assert seen.largest > LIMIT
