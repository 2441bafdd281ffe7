"""Sharpness-aware minimisation against a step by hand; without a radius it is plain descent to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.engine import learning_rate
from isda.lab.tasks.classification.methods.sam import perturbed_weights
from oracles import batch_covariance, jensen_bound
from small_runs import small_job

SETTINGS = {"precision": "float64", "width": 0.1, "weight_decay": 0.01, "lr": 0.05}


def test_the_weights_move_along_the_gradient_of_all_of_them_and_come_back():
    one, other, unused = (nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((3, 2), (4,), (2,)))
    before = [p.detach().clone() for p in (one, other, unused)]
    one.grad, other.grad = torch.randn_like(one), torch.randn_like(other)
    gradients = [one.grad.clone(), other.grad.clone()]
    norm = sum(float((g**2).sum()) for g in gradients) ** 0.5
    with perturbed_weights([one, other, unused], rho=0.3):
        for parameter, start, gradient in zip((one, other), before, gradients, strict=False):
            torch.testing.assert_close(parameter.detach(), start + 0.3 * gradient / norm)
            assert parameter.grad is None
            parameter.grad = torch.ones_like(parameter)
        assert torch.equal(unused, before[2])
    assert all(torch.equal(p, start) for p, start in zip((one, other, unused), before, strict=True))
    assert torch.equal(one.grad, torch.ones_like(one))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_gradients_that_overflowed_move_nothing(bad):
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, bad, 0.0])
    with perturbed_weights([weight], rho=0.3):
        assert torch.equal(weight, torch.ones(3))


def by_hand(config, batches, rho, lambda_0):
    """The parameters after each step: the gradient at p + rho g / |g|, then Nesterov momentum from p."""
    torch.manual_seed(config.seed)
    network = networks.create(config.network, num_classes=10, **config.network_options).double().train()
    parameters = list(network.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    seen_features, seen_targets, history = [], [], []
    for step, batch in enumerate(batches):

        def loss_of(step=step, batch=batch, first=False):
            features = network.features(batch.images.double())
            logits = network.classifier(features)
            if lambda_0 is None:
                return nn.functional.cross_entropy(logits, batch.targets)
            if first:
                seen_features.append(features.detach())
                seen_targets.append(batch.targets)
            covariances = batch_covariance(torch.cat(seen_features), torch.cat(seen_targets), 10)
            strength = lambda_0 * step / config.total_steps
            return jensen_bound(logits, batch.targets, network.classifier.weight, covariances, strength).mean()

        gradients = torch.autograd.grad(loss_of(first=True), parameters)
        running = {name: value.clone() for name, value in network.named_buffers()}
        norm = sum(float((g**2).sum()) for g in gradients) ** 0.5
        before = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.add_(rho * gradient / norm)
        gradients = torch.autograd.grad(loss_of(), parameters)
        with torch.no_grad():
            for name, value in network.named_buffers():
                value.copy_(running[name])
            for p, start, velocity, gradient in zip(parameters, before, velocities, gradients, strict=True):
                gradient = gradient + config.weight_decay * start
                velocity.mul_(config.momentum).add_(gradient)
                p.copy_(start - learning_rate(config, step) * (gradient + config.momentum * velocity))
        history.append([t.detach().clone() for t in (*parameters, *network.buffers())])
    return history


@pytest.mark.parametrize(("method", "lambda_0"), [("sam:rho=0.3", None), ("sam+isda:rho=0.3,lambda_0=3", 3.0)])
def test_steps_equal_those_by_hand_running_statistics_included(method, lambda_0):
    job = small_job(method=method, epochs=1, **SETTINGS)
    batches = list(job.batches(0))
    expected = by_hand(job.config, batches, 0.3, lambda_0)
    for step, batch in enumerate(batches):
        job.step(batch, step)
        mine = (*job.network.parameters(), *job.network.buffers())
        for one, other in zip(mine, expected[step], strict=True):
            torch.testing.assert_close(one.detach(), other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "base"), [("sam:rho=0", "cross-entropy"), ("sam+isda:rho=0,lambda_0=2", "isda:lambda_0=2")]
)
def test_without_a_radius_it_is_plain_descent_to_the_bit(method, base):
    # Dropout: both passes of a step see the same masks.
    jobs = [small_job(method=text, network="resnet-8", dropout=0.3, ema=0.9) for text in (method, base)]
    for step, batch in enumerate(jobs[0].batches(0)):
        for job in jobs:
            job.step(batch, step)
    states = [job.state().tensors for job in jobs]
    for group in ("model", "average"):
        for name, value in states[1][group].items():
            assert torch.equal(states[0][group][name], value), name
    for name, value in states[1]["method"].items():
        assert torch.equal(states[0]["method"][name], value), name
    assert jobs[0].finish_epoch(1, 5) == jobs[1].finish_epoch(1, 5)


def test_a_radius_changes_the_step_and_statistics_count_once():
    jobs = [small_job(method=f"sam+isda:rho={rho},lambda_0=2") for rho in (0.0, 0.5)]
    for step, batch in enumerate(jobs[0].batches(0)):
        for job in jobs:
            job.step(batch, step)
    assert not torch.equal(*(job.network.classifier.weight for job in jobs))
    for job in jobs:
        criterion = job.method.criterion
        assert (criterion.step, int(criterion.covariance.count.sum())) == (5, 100)


def test_a_learned_covariance_is_moved_and_trained_with_the_network():
    job = small_job(method="sam+isda:lambda_0=2,covariance=learned,rank=3")
    factor = job.method.criterion.covariance.factor
    before = factor.detach().clone()
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert not torch.equal(factor, before)


def test_float16_with_loss_scaling_takes_the_same_way():
    """A scale that overflows is halved until it does not, and the weights are those of before until then."""
    job = small_job(method="sam:rho=0.1", precision="float16", lr=0.05)
    job.scaler.load_state_dict(job.scaler.state_dict() | {"scale": 2.0**24})
    before = copy.deepcopy(job.network.classifier.weight.detach())
    batch = next(job.batches(0))
    job.step(batch, 0)
    assert torch.equal(job.network.classifier.weight, before)
    for step in range(1, 14):
        job.step(batch, step)
    assert job.scaler.get_scale() < 2.0**24
    assert not torch.equal(job.network.classifier.weight, before)
    assert all(p.isfinite().all() for p in job.network.parameters())
