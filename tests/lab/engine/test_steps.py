"""Optimiser steps: accumulated gradients, clipping, schedules, and a resume between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isda.lab.engine import Hook, Saving, Stopped, learning_rate
from isda.lab.train import train
from small_runs import digits, small_config, small_job

PLAIN = {"method": "cross-entropy", "precision": "float64"}


def weights(job):
    return torch.cat([parameter.detach().flatten() for parameter in job.network.parameters()])


def test_accumulated_gradients_are_the_mean_over_their_steps():
    job, reference = small_job(accumulate=2, **PLAIN), small_job(**PLAIN)
    first, second = (batch for _, batch in zip(range(2), job.batches(0), strict=False))
    before = weights(job)
    job.step(first, 0)
    assert torch.equal(weights(job), before)
    job.step(second, 1)
    loss = sum(nn.functional.cross_entropy(reference.network(batch.images), batch.targets) for batch in (first, second))
    (loss / 2).backward()
    for group in reference.optimiser.param_groups:
        group["lr"] = reference.learning_rate(1)
    reference.optimiser.step()
    torch.testing.assert_close(weights(job), weights(reference))


def test_clipping_bounds_the_norm_of_the_gradients():
    job = small_job(clip=1e-3, weight_decay=0.0, **PLAIN)
    seen = []
    job.optimiser.register_step_pre_hook(
        lambda optimiser, *_: seen.append(
            torch.stack([p.grad.norm() for group in optimiser.param_groups for p in group["params"]]).norm()
        )
    )
    job.step(next(job.batches(0)), 0)
    assert float(seen[0]) == pytest.approx(1e-3, rel=1e-4)


def test_a_schedule_of_ones_own_replaces_the_recipes():
    falling = small_config(schedule="poly", epochs=4)
    assert [learning_rate(falling, step) for step in (0, falling.total_steps // 2)] == pytest.approx(
        [0.1, 0.1 * 0.5**0.9]
    )
    with pytest.raises(ValueError, match="schedule must be one of steps, cosine, poly, got 'exponential'"):
        small_config(schedule="exponential")
    with pytest.raises(ValueError, match="accumulate must be at least 1, got 0"):
        small_config(accumulate=0)


class StopAfter(Hook):
    def __init__(self, step):
        self.last = step

    def step(self, step):
        if step == self.last:
            raise Stopped("enough")


def test_a_run_that_accumulates_resumes_bit_for_bit(tmp_path):
    run = small_config(accumulate=3, method="isda", ema=0.9), digits()
    train(*run, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(*run, tmp_path / "cut", saving=Saving(steps=1), hooks=[StopAfter(8)])
    assert [file.name for file in sorted((tmp_path / "cut" / "checkpoints").iterdir())] == [
        "step-000000003.pt",
        "step-000000006.pt",
    ]
    train(*run, tmp_path / "cut")
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
