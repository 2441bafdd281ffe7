"""Off the CPU: a step gives what it gives on the CPU, and nothing in it makes the host wait."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pretend_accelerator
from isda import ExplicitLoss, ISDABCELoss, ISDALoss, covariance
from loss_cases import BOUNDS, KINDS, integers, normal

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")

A, STEPS = 6, 5
INPUTS = ("labels", "soft", "pixels", "tokens", "consistency")
# The host asks once per step whether a sketch is full; linalg.eigh, which shrinks it, reads its own success.
LOW_RANK_WAITS = {"aten._to_copy", "aten._linalg_eigh"}


class Left(NamedTuple):
    """What some steps left behind, on the CPU, and what the host waited for in the last three."""

    losses: list[Tensor]
    gradients: list[Tensor]
    state: dict[str, Tensor]
    waits: list[list[pretend_accelerator.Wait]]


def batches(inputs: str, classes: int):
    """(features, targets) of every step; one label is ignored."""
    for seed in range(STEPS):
        grid = {"pixels": (3, 4), "tokens": (5,)}.get(inputs, ())
        rows = 2 if grid else 12
        features = normal(rows, A, *grid, seed=seed) + 1
        targets = integers(classes, rows, *((6, 8) if inputs == "pixels" else grid), seed=seed)
        targets.view(-1)[0] = -100
        if inputs == "soft":
            targets = 0.7 * F.one_hot(targets.clamp(min=0), classes).double() + 0.3 / classes
        yield features, targets


def steps(kind: str, bound: str, inputs: str, classes: int, accelerator=None, **settings) -> Left:
    """Some training steps, on the pretend device if it is given."""
    device = "cpu" if accelerator is None else "pretend"
    place = (lambda tensor: tensor) if accelerator is None else pretend_accelerator.on_pretend
    if kind in ("low_rank", "learned"):
        settings["rank"] = 2
    criterion = ISDALoss(
        classes, A, 0.8, 3, covariance=kind, bound=bound, device=device, dtype=torch.float64, **settings
    )
    with torch.no_grad():
        for parameter in criterion.parameters():
            parameter.copy_(place(normal(*parameter.shape, seed=9)))
    weight, losses, waits = place(normal(classes, A, seed=8)).requires_grad_(), [], []
    for features, targets in batches(inputs, classes):
        features, targets = place(features).requires_grad_(), place(targets)
        if accelerator is not None:
            accelerator.clear()
        logits = torch.einsum("na...,ca->nc...", features, weight)
        if inputs == "tokens":
            loss = criterion(logits.mT, targets, features=features.mT, weight=weight)
        else:
            loss = criterion(logits, targets, features=features, weight=weight)
        if inputs == "consistency":
            loss = loss + criterion.consistency(logits, weight=weight)
        loss.backward()
        waits.append([] if accelerator is None else list(accelerator.waits))
        losses.append(loss.detach().cpu())
    gradients = [p.grad.cpu() for p in (features, weight, *criterion.parameters()) if p.grad is not None]
    state = {name: value.detach().cpu() for name, value in criterion.state_dict().items()}
    state["sigma"] = torch.stack([criterion.covariance.covariance(c).detach().cpu() for c in range(classes)])
    state.pop("covariance.sketch", None)
    return Left(losses, gradients, state, waits[2:])


def assert_same(actual: Left, expected: Left) -> None:
    torch.testing.assert_close(actual.losses, expected.losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(actual.gradients, expected.gradients, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(actual.state, expected.state, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [(kind, inputs) for kind in KINDS for inputs in (INPUTS if kind == "full" else INPUTS[:3])],
)
@pytest.mark.parametrize("bound", BOUNDS)
def test_steps_equal_the_cpus_and_wait_for_nothing(kind, bound, inputs):
    classes = 3 if inputs in ("labels", "pixels") else 14
    expected = steps(kind, bound, inputs, classes)
    with pretend_accelerator.PretendAccelerator() as accelerator:
        actual = steps(kind, bound, inputs, classes, accelerator)
    assert_same(actual, expected)
    for waits in actual.waits:
        if kind != "low_rank":
            assert waits == []
        else:
            assert {wait.operation for wait in waits} <= LOW_RANK_WAITS
            assert sum(wait.operation == "aten._to_copy" for wait in waits) <= 1


@pytest.mark.parametrize("settings", [{"max_ratio": 0.1}, {"memory": 4}, {"label_smoothing": 0.1, "reduction": "sum"}])
def test_settings_wait_for_nothing_either(settings):
    for kind in ("full", "within"):
        expected = steps(kind, "jensen", "labels", 14, **settings)
        with pretend_accelerator.PretendAccelerator() as accelerator:
            actual = steps(kind, "jensen", "labels", 14, accelerator, **settings)
        assert_same(actual, expected)
        assert actual.waits == [[], [], []]


def other_losses(accelerator=None):
    """A step of several labels per sample, and one of drawn features."""
    place = (lambda tensor: tensor) if accelerator is None else pretend_accelerator.on_pretend
    device = "cpu" if accelerator is None else "pretend"
    features, weight = place(normal(8, A, seed=1)), place(normal(3, A, seed=2)).requires_grad_()
    targets, labels = place((normal(8, 3, seed=3) > 0).double()), place(integers(3, 8, seed=4))
    torch.manual_seed(1)
    with accelerator or nullcontext():
        binary = ISDABCELoss(3, A, 0.5, 10, dtype=torch.float64, device=device, ignore_value=-1.0)
        explicit = ExplicitLoss(3, A, 0.5, 10, dtype=torch.float64, device=device, covariance="diagonal")
        if accelerator is not None:
            accelerator.clear()
        loss = binary(features @ weight.t(), targets, features=features, weight=weight, strength=0.5)
        loss = loss + explicit(features @ weight.t(), labels, features=features, weight=weight, strength=0.5)
        loss.backward()
        waits = [] if accelerator is None else list(accelerator.waits)
        return loss.detach().cpu(), weight.grad.cpu(), waits


def test_the_other_losses_equal_the_cpus_and_wait_for_nothing():
    loss, gradient, _ = other_losses()
    actual, grad, waits = other_losses(pretend_accelerator.PretendAccelerator())
    torch.testing.assert_close(actual, loss)
    torch.testing.assert_close(grad, gradient)
    assert waits == []


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_finite_do_not_count_on_a_device(kind):
    clean, targets = normal(10, A, seed=1), integers(3, 10, seed=2)
    spoiled = clean.clone()
    spoiled[3, 2], spoiled[7, 0] = math.nan, math.inf
    counted = torch.ones(10, dtype=torch.bool)
    counted[[3, 7]] = False
    settings = {"rank": 6} if kind == "low_rank" else {}
    expected = covariance.create(kind, 3, A, dtype=torch.float64, **settings)
    expected.update(clean[counted], targets[counted])
    with pretend_accelerator.PretendAccelerator() as accelerator:
        model = covariance.create(kind, 3, A, dtype=torch.float64, device="pretend", **settings)
        accelerator.clear()
        model.update(*map(pretend_accelerator.on_pretend, (spoiled, targets)))
        assert len(accelerator.waits) <= (kind == "low_rank")
        for name, value in expected.state_dict().items():
            if name != "sketch":
                torch.testing.assert_close(model.state_dict()[name].cpu(), value, rtol=1e-9, atol=1e-9)


def test_a_criterion_on_another_device_than_the_logits_is_refused():
    with pretend_accelerator.PretendAccelerator():
        there = pretend_accelerator.on_pretend
        criterion = ISDALoss(3, A, 0.5, 10)
        features, weight = there(normal(4, A, seed=1)), there(normal(3, A, seed=2))
        with pytest.raises(ValueError, match=r"use criterion.to\(device\)"):
            criterion(features @ weight.t(), there(integers(3, 4, seed=3)), features=features, weight=weight)
        criterion = ISDALoss(3, A, 0.5, 10, device="pretend")
        with pytest.raises(ValueError, match=r"weight must be .* on pretend"):
            criterion(features @ weight.t(), there(integers(3, 4, seed=3)), features=features, weight=weight.cpu())
        assert int(criterion.covariance.count.sum()) == 0


def test_devices_do_not_mix_and_waits_are_seen():
    with pretend_accelerator.PretendAccelerator() as accelerator:
        there, here = torch.ones(3, device="pretend"), torch.ones(3)
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        reads = [
            lambda: float(there.sum()),
            lambda: there[there > 0],
            lambda: there.nonzero(),
            lambda: there.cpu(),
            lambda: there.tolist(),
            lambda: torch.unique(there),
            lambda: torch.linalg.eigh(torch.eye(2, device="pretend")),
            lambda: torch.tensor([1.0], device="pretend"),
        ]
        accelerator.clear()
        for number, read in enumerate(reads, 1):
            read()
            assert len(accelerator.waits) == number
