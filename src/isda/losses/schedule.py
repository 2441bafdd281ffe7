"""The strength schedule lambda = lambda_0 * t / T, with t in a buffer and no device synchronisation per step.

t counts training forwards, or follows the steps of an optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.checks import warn
from isda._utils.choices import check_choice
from isda._utils.devices import HostMirror, in_graph, on_host

SCHEDULES = ("linear", "constant")
DEFAULT_STEPS = 10_000
"""T of a linear schedule whose total_steps were not given."""
_EXTERNAL = -1
"""The microstep of a schedule whose steps are set from outside: forwards do not move it."""


def strength_dtype(device: torch.device | str | None) -> torch.dtype:
    """The type of a strength that is kept on a device: float64 where there is one."""
    return torch.float32 if device is not None and torch.device(device).type == "mps" else torch.float64


class StrengthSchedule(nn.Module):
    """lambda = lambda_0 * t / T, section 4.1 of the paper, or a constant lambda_0.

    t counts training forwards. With an optimizer it moves when the optimizer makes a step: by 1 if T is a number of
    steps, by the forwards since the last step if T is a number of batches.

    Args:
        lambda_0: final strength.
        total_steps: T; None for DEFAULT_STEPS, with a warning at the first training forward.
        device: where the step counter lives.
        kind: "linear" or "constant".
    """

    automatic = False
    """Whether the strength is matched to a held-out loss instead."""
    step: Tensor
    microstep: Tensor

    def __init__(
        self,
        lambda_0: float,
        total_steps: int | None = None,
        device: torch.device | str | None = None,
        kind: str = "linear",
    ) -> None:
        super().__init__()
        if not isinstance(lambda_0, SupportsFloat):  # a model, where attach(model) takes one first
            raise ValueError(f"lambda_0 must be a finite number >= 0 or 'auto', got {type(lambda_0).__name__}")
        checks.check_strength("lambda_0", lambda_0)
        self.kind = check_choice("schedule", kind, SCHEDULES)
        self.lambda_0, self.total_steps = float(lambda_0), total_steps
        self._advance_every = 1
        self._optimizer: _OptimizerHook | None = None
        self._warns = True
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("microstep", torch.zeros((), dtype=torch.int64, device=device))
        self._step_on_host, self._microstep_on_host = _Counter(), _Counter()

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with a negative step, before any of it is loaded."""
        for name, lowest in (("step", 0), ("microstep", _EXTERNAL)):
            checks.check_entry(prefix + name, state.get(prefix + name), lowest)

    @property
    def total_steps(self) -> int | None:
        """T, or None where it was not given."""
        return self._total_steps

    @total_steps.setter
    def total_steps(self, value: int | None) -> None:
        if value is not None and not (value >= 1 and value % 1 == 0):
            raise ValueError(f"total_steps must be a positive integer or None, got {value!r}")
        if value is not None and self.kind == "constant":
            raise ValueError(f"total_steps must not be given with schedule='constant', got {value}")
        self._total_steps = None if value is None else int(value)

    @property
    def advance_every(self) -> int:
        """Training forwards per step; setting it makes forwards count again after ``set_step``."""
        return self._advance_every

    @advance_every.setter
    def advance_every(self, value: int) -> None:
        value = checks.check_integer("advance_every", value, 1)
        if self._optimizer is not None:
            raise ValueError(f"advance_every must not be set where an optimizer drives the schedule, got {value}")
        self._advance_every = value
        if self._microstep_on_host.read(self.microstep) == _EXTERNAL:
            self._microstep_on_host.write(self.microstep.zero_(), 0)

    @property
    def strength(self) -> float:
        """The current lambda."""
        if self.kind == "constant":
            return self.lambda_0
        total = self.total_steps or DEFAULT_STEPS
        return self.lambda_0 * min(self._step_on_host.read(self.step), total) / total

    @property
    def matched(self) -> bool:
        """Whether the strength is known yet."""
        return True

    @property
    def in_window(self) -> bool:
        """Whether forwards were counted that have not moved t yet: the middle of a window of gradient accumulation."""
        return self._optimizer is None and self._microstep_on_host.read(self.microstep) > 0

    def strength_for_call(self, strength: float | None) -> float:
        """The lambda of one call: as given, or the schedule's."""
        if strength is None:
            return self.strength
        strength = float(strength)
        checks.check_strength("strength", strength)
        return strength

    # -- where a graph is recorded: the same on the device, without a value on the host -------------------------------

    def recorded_strength(self, dtype: torch.dtype) -> Tensor:
        """The current lambda, without dimensions."""
        if self.kind == "constant":
            return torch.full((), self.lambda_0, dtype=dtype, device=self.step.device)
        total = self.total_steps or DEFAULT_STEPS
        return self.step.clamp(max=total).to(dtype) * self.lambda_0 / total

    def record_advance(self) -> None:
        """``advance``."""
        self._step_on_host.is_recorded = self._microstep_on_host.is_recorded = True
        external, counted = self.microstep == _EXTERNAL, self.microstep.clamp(min=0) + 1
        if self._optimizer is not None:
            if self._optimizer.batches:
                self.microstep.copy_(counted)
            return
        full = counted >= self.advance_every
        if self.advance_every > 1:
            self.microstep.copy_(torch.where(external, _EXTERNAL, torch.where(full, 0, counted)))
        self._record_move((full & ~external).to(torch.int64))

    def _record_move(self, steps: Tensor) -> None:
        if self.kind == "linear":
            total = self.total_steps or DEFAULT_STEPS
            steps = torch.minimum(steps, (total - self.step).clamp(min=0))
        self.step.add_(steps)

    def set_step(self, step: int) -> None:
        """Set t; from now on it moves by this alone, or by the steps of an optimizer."""
        step = checks.check_integer("step", step)
        self._step_on_host.write(self.step.fill_(step), step)
        self._microstep_on_host.write(self.microstep.fill_(_EXTERNAL), _EXTERNAL)

    def follow(self, optimizer: torch.optim.Optimizer, *, batches: bool = False) -> None:
        """Let the steps of an optimizer move t; ``batches`` says that T counts training forwards."""
        self.unfollow()
        self._optimizer = _OptimizerHook(self, optimizer, batches)

    def unfollow(self) -> None:
        """Remove the hook from the optimizer."""
        if self._optimizer is not None:
            self._optimizer.remove()
            self._optimizer = None

    def advance(self) -> None:
        """Count one training forward; t moves after ``advance_every`` of them and stops at T."""
        if self._warns and self.kind == "linear" and self.total_steps is None and self.lambda_0:
            self._warns = False
            warn(
                f"total_steps was not given, so the strength grows from 0 to lambda_0={self.lambda_0:g} over "
                f"{DEFAULT_STEPS:,} steps; pass total_steps=..., the optimizer steps of the whole training, or "
                "epochs=... and loader=..., or schedule='constant'"
            )
        microstep = self._microstep_on_host.read(self.microstep)
        if self._optimizer is not None:
            if self._optimizer.batches:
                counted = max(microstep, 0) + 1
                self._microstep_on_host.write(self.microstep.fill_(counted), counted)
            return
        if microstep == _EXTERNAL:
            return
        if self.advance_every > 1:
            done = microstep + 1
            if done < self.advance_every:
                self._microstep_on_host.write(self.microstep.add_(1), done)
                return
            self._microstep_on_host.write(self.microstep.zero_(), 0)
        self._move(1)

    def _after_optimizer_step(self, batches: bool) -> None:
        if in_graph():
            self._record_move(self.microstep.clamp(min=0) if batches else torch.ones_like(self.step))
            if batches:
                self.microstep.zero_()
            return
        if not batches:
            self._move(1)
            return
        counted = max(self._microstep_on_host.read(self.microstep), 0)
        self._microstep_on_host.write(self.microstep.zero_(), 0)
        self._move(counted)

    def _move(self, steps: int) -> None:
        done = self._step_on_host.read(self.step)
        if self.kind == "linear":
            steps = min(steps, max(0, (self.total_steps or DEFAULT_STEPS) - done))
        if steps:
            self._step_on_host.write(self.step.add_(steps), done + steps)


class _OptimizerHook:
    """A step hook of an optimizer that moves a schedule; a copy of the schedule has one without an optimizer.

    Args:
        schedule: to move.
        optimizer: of torch, or a wrapper with one as its ``optimizer``.
        batches: whether the schedule counts batches.
    """

    def __init__(self, schedule: StrengthSchedule | None = None, optimizer: Any = None, batches: bool = False) -> None:
        self.batches = batches
        self._schedule = None if schedule is None else weakref.ref(schedule)
        self._handle = None
        if schedule is None:
            return
        while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):  # such as accelerate's
            optimizer = optimizer.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        self._handle = optimizer.register_step_post_hook(self)

    def __reduce__(self) -> tuple[type[_OptimizerHook], tuple[None, None, bool]]:
        """A copy follows no optimizer."""
        return (_OptimizerHook, (None, None, self.batches))

    def __call__(self, *_: Any) -> None:
        """After a step."""
        schedule = None if self._schedule is None else self._schedule()
        if schedule is not None:
            schedule._after_optimizer_step(self.batches)

    def remove(self) -> None:
        """Take the hook off the optimizer."""
        if self._handle is not None:
            self._handle.remove()
        self._schedule = self._handle = None


def batches_of(epochs: int, loader: Any) -> int:
    """The number of batches of a training, from what ``attach`` is given.

    Example:
        >>> batches_of(3, ["first batch", "second batch"])
        6
    """
    epochs = checks.check_integer("epochs", epochs, 1)
    try:
        batches = len(loader)
    except TypeError:
        kind = type(loader).__name__
        raise ValueError(f"loader must have a length, got {kind} without one; pass total_steps instead") from None
    if batches < 1:
        raise ValueError(f"loader must have at least one batch, got {batches}")
    return epochs * batches


class _Counter:
    """The value of a counter on the host; off the CPU the buffer is read only after other code changed it."""

    def __init__(self) -> None:
        self._mirror: HostMirror[int] = HostMirror()
        self.is_recorded = False  # whether graphs change the buffer: a replay leaves no trace in Python

    def read(self, buffer: Tensor) -> int:
        if on_host(buffer) or self.is_recorded:
            return int(buffer)
        value = self._mirror.read(buffer)
        if value is None:
            value = int(buffer)
            self._mirror.write(buffer, value)
        return value

    def write(self, buffer: Tensor, value: int) -> None:
        if not on_host(buffer):
            self._mirror.write(buffer, value)
