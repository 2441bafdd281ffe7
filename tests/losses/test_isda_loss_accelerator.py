"""Off the CPU: a step gives what it gives on the CPU, makes the host wait for nothing and launches few kernels."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import COVARIANCES, normal

import pretend_accelerator
from isda import ISDALoss

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")

BOUNDS = ("jensen", "tilted")
KINDS = ("labels", "soft", "consistency", "pixels")
DIM, STRENGTH, STEPS = 6, 0.4, 4
# One read per step tells the host whether a sketch is full; linalg.eigh, which shrinks it, reads its own success.
LOW_RANK_WAITS = {"aten._to_copy": "functional/sketch.py", "aten._linalg_eigh": "functional/sketch.py"}


class Step(NamedTuple):
    """What a training step left behind."""

    loss: torch.Tensor
    gradients: list[torch.Tensor]
    state: dict[str, torch.Tensor]


def batches(kind: str, num_classes: int, dtype: torch.dtype, rows: int = 12):
    """(features, targets) of every step; the last step holds an ignored label."""
    for seed in range(STEPS):
        generator = torch.Generator().manual_seed(seed)
        if kind == "pixels":
            features = normal(2, DIM, 3, 4, seed=seed, dtype=dtype)
            targets = torch.randint(num_classes, (2, 6, 8), generator=generator)
            targets[0, :3] = -100
        else:
            features = normal(rows, DIM, seed=seed, dtype=dtype)
            targets = torch.randint(num_classes, (rows,), generator=generator)
        if kind == "soft":
            targets = 0.7 * F.one_hot(targets, num_classes).to(dtype) + 0.3 / num_classes
        elif kind == "labels" and seed == STEPS - 1:
            targets[3] = -100
        yield features, targets


def run(kind: str, covariance: str, bound: str, dtype: torch.dtype, num_classes: int, device=None):
    """The last of a few training steps; on the pretend device if one is given, which records that step alone."""
    torch.manual_seed(0)
    place = (lambda tensor: tensor) if device is None else pretend_accelerator.on_pretend
    settings = {"rank": 2} if covariance in ("low_rank", "learned") else {}
    where = "cpu" if device is None else "pretend"
    criterion = ISDALoss(
        num_classes, DIM, STRENGTH, covariance=covariance, bound=bound, dtype=dtype, device=where, **settings
    )
    if covariance == "learned":
        with torch.no_grad():
            criterion.covariance.factor.copy_(place(normal(num_classes, DIM, 2, seed=9, dtype=dtype)))
    weight = place(normal(num_classes, DIM, seed=8, dtype=dtype)).requires_grad_()
    for features, targets in batches(kind, num_classes, dtype):
        features = place(features).requires_grad_()
        targets = place(targets)
        criterion.zero_grad()
        weight.grad = None
        if device is not None:
            device.clear()
        logits = torch.einsum("na...,ca->nc...", features, weight)
        if kind == "consistency":
            hard = targets
            criterion(logits.detach(), hard, features=features.detach(), weight=weight.detach())
            loss = criterion.consistency(logits, weight=weight)
        else:
            loss = criterion(logits, targets, features=features, weight=weight)
        loss.backward()
    gradients = [features.grad, weight.grad, *[p.grad for p in criterion.parameters() if p.grad is not None]]
    waits = [] if device is None else list(device.waits)
    home = [value.detach().cpu() for value in (loss, *gradients)]
    state = {name: value.cpu() for name, value in criterion.state_dict().items()}
    state["mean"] = criterion.covariance.mean.cpu()
    state["covariances"] = torch.stack([criterion.covariance.covariance(c).detach().cpu() for c in range(num_classes)])
    return Step(home[0], home[1:], state), waits


# Fewer classes than rows, and more, in both precisions; what `make test` leaves out is in `make test-slow`.
OFTEN = {("labels", 3, torch.float64), ("labels", 20, torch.float32), ("soft", 20, torch.float64)}
OFTEN |= {("consistency", 3, torch.float32), ("pixels", 3, torch.float64)}
CASES = [
    pytest.param(*case, marks=() if case in OFTEN else pytest.mark.slow)
    for case in itertools.product(KINDS, (3, 20), (torch.float32, torch.float64))
]


@pytest.mark.parametrize(("kind", "num_classes", "dtype"), CASES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_step_equals_the_cpus_and_waits_for_nothing(covariance, bound, kind, num_classes, dtype):
    expected, _ = run(kind, covariance, bound, dtype, num_classes)
    with pretend_accelerator.PretendAccelerator() as device:
        actual, waits = run(kind, covariance, bound, dtype, num_classes, device)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(actual.loss, expected.loss, **close)
    for ours, theirs in zip(actual.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=10 * tolerance, atol=10 * tolerance)
    for name in ("covariance.count", "schedule.step", "mean", "covariances"):
        torch.testing.assert_close(actual.state[name], expected.state[name], **close)
    assert actual.state.keys() == expected.state.keys()
    allowed = LOW_RANK_WAITS if covariance == "low_rank" else {}
    assert [wait for wait in waits if not wait.line.startswith(allowed.get(wait.operation, "-"))] == []
    assert len({wait.operation for wait in waits}) == len(waits)


def launches_of_a_step(covariance: str, bound: str, rows: int, num_classes: int, device) -> list[str]:
    """What the third training step launches; every class occurs in each of them, or as many as there are rows."""
    criterion = ISDALoss(
        num_classes, DIM, STRENGTH, covariance=covariance, bound=bound, device="pretend", schedule="constant"
    )
    weight = pretend_accelerator.on_pretend(0.1 * normal(num_classes, DIM, seed=8, dtype=torch.float32))
    weight.requires_grad_()
    for seed in range(3):
        logits = pretend_accelerator.on_pretend(normal(rows, num_classes, seed=seed, dtype=torch.float32))
        features = pretend_accelerator.on_pretend(normal(rows, DIM, seed=seed, dtype=torch.float32))
        targets = pretend_accelerator.on_pretend(torch.arange(rows) % num_classes)
        weight.grad = None
        device.clear()
        criterion(logits.requires_grad_(), targets, features=features, weight=weight).backward()
    return [launch.operation for launch in device.launches]


@pytest.mark.parametrize(("bound", "limit"), [("jensen", 60)])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_launches_stay_below_the_limit_and_do_not_grow(covariance, bound, limit):
    with pretend_accelerator.PretendAccelerator() as device:
        small = launches_of_a_step(covariance, bound, 12, 4, device)
        large = launches_of_a_step(covariance, bound, 96, 24, device)
        wide = launches_of_a_step(covariance, bound, 12, 30, device)
    assert small == large
    assert len(small) <= limit
    # More classes than rows: their statistics have to be picked, and some have never been seen.
    assert len(wide) <= limit + 6


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_launches_of_the_tilted_bound_stay_below_the_limit_and_do_not_grow(covariance):
    with pretend_accelerator.PretendAccelerator() as device:
        # Fewer classes than features, more, and more than a step of the search has unknowns.
        for sizes in (((12, 4), (60, 6)), ((60, 10), (96, 16)), ((60, 30), (96, 48))):
            small, large = (launches_of_a_step(covariance, "tilted", *size, device) for size in sizes)
            assert small == large
            assert len(large) <= 320


@pytest.mark.parametrize("advance_every", [1, 3])
def test_a_schedule_asks_the_device_for_nothing(advance_every):
    with pretend_accelerator.PretendAccelerator() as device:
        criterion = ISDALoss(3, DIM, STRENGTH, total_steps=5, covariance="diagonal", device="pretend")
        criterion.advance_every = advance_every
        weight = pretend_accelerator.on_pretend(0.1 * normal(3, DIM, seed=8, dtype=torch.float32))
        strengths = []
        for step in range(6):
            features = pretend_accelerator.on_pretend(normal(6, DIM, seed=step, dtype=torch.float32))
            targets = pretend_accelerator.on_pretend(torch.arange(6) % 3)
            if step == advance_every + 1:  # after the first step that is augmented, whose strength is looked at
                device.clear()
            strengths.append(criterion.strength)
            criterion(features @ weight.T, targets, features=features, weight=weight)
        assert device.waits == []
    expected = [STRENGTH * (step // advance_every) / 5 for step in range(6)]
    assert strengths == pytest.approx(expected)


def test_devices_do_not_mix_and_waits_are_seen():
    with pretend_accelerator.PretendAccelerator() as device:
        there, here = torch.ones(3, device="pretend"), torch.ones(3)
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        assert (there + torch.ones(())).device.type == "pretend"
        device.clear()
        reads = [
            lambda: float(there.sum()),
            lambda: there[there > 0],
            lambda: there.nonzero(),
            lambda: there.cpu(),
            lambda: there.tolist(),
            lambda: torch.unique(there),
            lambda: torch.linalg.eigh(torch.eye(2, device="pretend")),
            lambda: torch.linalg.solve(torch.eye(2, device="pretend"), torch.eye(2, device="pretend")),
            lambda: there.index_put_((there > 0,), torch.zeros((), device="pretend")),
            lambda: torch.tensor([1.0], device="pretend"),
        ]
        for number, read in enumerate(reads, 1):
            read()
            assert len(device.waits) == number
