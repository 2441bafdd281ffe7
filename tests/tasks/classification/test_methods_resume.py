"""Methods with draws, passes or parameters of their own: a run taken up in the middle ends in the same bits."""

from __future__ import annotations

import copy

import pytest
import torch

from small_runs import small_job

METHODS = (
    "isda:lambda_0=2,covariance=learned,rank=3,uncertainty_weight=0.5,uncertainty_margin=20",
    "explicit:lambda_0=2,samples=2",
    "explicit:lambda_0=2,samples=2,covariance=learned,rank=3",
    "mixup+isda:lambda_0=2",
)


def steps(job, batches, numbers):
    for number in numbers:
        job.step(batches[number], number)


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_in_the_same_bits(method):
    whole, first, second = (small_job(method=method, width=0.1, ema=0.9) for _ in range(3))
    batches = list(whole.batches(0))
    steps(whole, batches, range(5))
    steps(first, batches, range(3))
    second.restore(copy.deepcopy(first.state()))
    torch.rand(7)  # what anybody else draws does not matter
    steps(second, batches, range(3, 5))
    mine, expected = second.state(), whole.state()
    for group, tensors in expected.tensors.items():
        assert tensors.keys() == mine.tensors[group].keys()
        assert all(torch.equal(mine.tensors[group][name], value) for name, value in tensors.items())
    assert second.finish_epoch(1, 5) == whole.finish_epoch(1, 5)


@pytest.mark.parametrize("name", ["isda", "explicit"])
def test_learned_covariances_are_trained_with_the_network_and_kept_alive(name):
    """Without the uncertainty loss they shrink from the start; with a large margin they grow."""
    entropies = []
    for weight in (0.0, 10.0):
        learned = f"covariance=learned,rank=3,uncertainty_weight={weight},uncertainty_margin=99"
        job = small_job(method=f"{name}:lambda_0=5,schedule=constant,{learned}", width=0.1, weight_decay=0.0)
        factor = job.method.criterion.covariance.factor
        before = factor.detach().clone()
        for step, batch in enumerate(job.batches(0)):
            job.step(batch, step)
        assert not torch.equal(factor, before)
        assert "criterion.covariance.factor" in job.state().tensors["method"]
        entropies.append(float(torch.logdet(factor.detach().mT @ factor.detach()).mean()))
    assert entropies[0] < 0 < entropies[1]  # of D'D = I at the start
