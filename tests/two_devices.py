"""A run's first steps on the CPU and on the pretend device: what each leaves behind, to be compared."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import pretend_accelerator
from isda.lab.engine import Processes, RunContext

needs_a_device = pytest.mark.skipif(
    not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python"
)


class Left(NamedTuple):
    """What a few steps left behind."""

    tensors: dict[str, Tensor]
    figures: dict[str, float]
    """Of the evaluation, where there was one."""
    waits: list[list[pretend_accelerator.Wait]]
    """What made the host wait for the device, of each step."""


def on_host_and_device(
    task: Any, config: Any, data: Any, folder: Path, *, steps: int = 3, evaluated: bool = False
) -> tuple[Left, Left]:
    """What the same steps, and an evaluation if asked for, leave on the CPU and on the pretend device."""
    host = _left(task, config, data, RunContext(Processes(0, 1, torch.device("cpu")), folder), steps, evaluated)
    device = _left(task, config, data, RunContext(Processes(0, 1, torch.device("pretend")), folder), steps, evaluated)
    return host, device


def _left(task: Any, config: Any, data: Any, place: RunContext, steps: int, evaluated: bool) -> Left:
    accelerator = pretend_accelerator.PretendAccelerator() if place.processes.device.type == "pretend" else None
    waits = []
    with accelerator or nullcontext():
        job = task.start(config, data, place)
        for step in range(steps):
            if step % config.steps_per_epoch == 0:
                batches = job.batches(step // config.steps_per_epoch)
            if accelerator is not None:
                accelerator.clear()
            job.step(next(batches), step)
            if accelerator is not None:
                waits.append(list(accelerator.waits))
        figures = job.finish_epoch(config.epochs, steps) if evaluated else {}
        state = job.state().tensors
        tensors = {f"{group} {key}": value.cpu() for group, part in state.items() for key, value in part.items()}
    return Left(tensors, figures, waits)


def assert_the_same(host: Left, device: Left, rtol: float = 1e-9, atol: float = 1e-9, figures: float = 1e-6) -> None:
    """Networks, methods and figures agree."""
    assert device.tensors.keys() == host.tensors.keys()
    for name, value in host.tensors.items():
        torch.testing.assert_close(device.tensors[name], value, rtol=rtol, atol=atol, msg=f"{name}: {{}}".format)
    assert device.figures == pytest.approx(host.figures, rel=figures, abs=1e-8)
