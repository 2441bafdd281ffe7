"""The strength schedule lambda = lambda_0 * t / T, with t in a buffer and no device synchronisation per step, and a
monitor that warns if the strength is far too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.checks import warn
from isda._utils.devices import READ_EVERY, HostMirror, on_host

_EXTERNAL = -1
"""The microstep of a schedule whose steps are set from outside: forwards do not move it."""


class StrengthSchedule(nn.Module):
    """lambda = lambda_0 * t / T, section 4.1 of the paper; constant lambda_0 without a T.

    Args:
        lambda_0: final strength.
        total_steps: T, or None for a constant strength.
        device: where the step counter lives.
    """

    automatic = False
    """Whether the strength is matched to a held-out loss instead."""
    step: Tensor
    microstep: Tensor

    def __init__(self, lambda_0: float, total_steps: int | None, device: torch.device | str | None = None) -> None:
        super().__init__()
        if not isinstance(lambda_0, SupportsFloat):  # a model, where attach(model) takes one first
            raise ValueError(f"lambda_0 must be a finite number >= 0 or 'auto', got {type(lambda_0).__name__}")
        checks.check_strength("lambda_0", lambda_0)
        self.lambda_0, self.total_steps = float(lambda_0), total_steps
        self._advance_every = 1
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("microstep", torch.zeros((), dtype=torch.int64, device=device))
        self._step_on_host, self._microstep_on_host = _Counter(), _Counter()

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with a negative step, before any of it is loaded."""
        for name, lowest in (("step", 0), ("microstep", _EXTERNAL)):
            checks.check_entry(prefix + name, state.get(prefix + name), lowest)

    @property
    def total_steps(self) -> int | None:
        """T, or None for a constant strength."""
        return self._total_steps

    @total_steps.setter
    def total_steps(self, value: int | None) -> None:
        if value is not None and not (value >= 1 and value % 1 == 0):
            raise ValueError(f"total_steps must be a positive integer or None, got {value!r}")
        self._total_steps = None if value is None else int(value)

    @property
    def advance_every(self) -> int:
        """Training forwards per step; setting it makes forwards count again after ``set_step``."""
        return self._advance_every

    @advance_every.setter
    def advance_every(self, value: int) -> None:
        self._advance_every = checks.check_integer("advance_every", value, 1)
        if self._microstep_on_host.read(self.microstep) == _EXTERNAL:
            self._microstep_on_host.write(self.microstep.zero_(), 0)

    @property
    def strength(self) -> float:
        """The current lambda."""
        if self.total_steps is None:
            return self.lambda_0
        return self.lambda_0 * min(self._step_on_host.read(self.step), self.total_steps) / self.total_steps

    def strength_for_call(self, strength: float | None) -> float:
        """The lambda of one call: as given, or the schedule's."""
        if strength is None:
            return self.strength
        strength = float(strength)
        checks.check_strength("strength", strength)
        return strength

    def set_step(self, step: int) -> None:
        """Set t; from now on it moves by this alone."""
        step = checks.check_integer("step", step)
        self._step_on_host.write(self.step.fill_(step), step)
        self._microstep_on_host.write(self.microstep.fill_(_EXTERNAL), _EXTERNAL)

    def advance(self) -> None:
        """Count one training forward; t moves after ``advance_every`` of them and stops at T."""
        microstep = self._microstep_on_host.read(self.microstep)
        if microstep == _EXTERNAL:
            return
        if self.advance_every > 1:
            done = microstep + 1
            if done < self.advance_every:
                self._microstep_on_host.write(self.microstep.add_(1), done)
                return
            self._microstep_on_host.write(self.microstep.zero_(), 0)
        done = self._step_on_host.read(self.step)
        if self.total_steps is None or done < self.total_steps:
            self._step_on_host.write(self.step.add_(1), done + 1)


class _Counter:
    """The value of a counter on the host; off the CPU the buffer is read only after other code changed it."""

    def __init__(self) -> None:
        self._mirror: HostMirror[int] = HostMirror()

    def read(self, buffer: Tensor) -> int:
        if on_host(buffer):
            return int(buffer)
        value = self._mirror.read(buffer)
        if value is None:
            value = int(buffer)
            self._mirror.write(buffer, value)
        return value

    def write(self, buffer: Tensor, value: int) -> None:
        if not on_host(buffer):
            self._mirror.write(buffer, value)


_RATIO = 10.0
_GROWTH = 1.1


def variance_and_spread(variance: Tensor, logits: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """The mean of strength/2 * variance (N, C), and what the logits (N, C) of a sample vary by on average; detached."""
    return strength / 2 * variance.detach().mean(), logits.detach().std(1, correction=0).mean()


def capped_variance(variance: Tensor, logits: Tensor, strength: float, max_ratio: float) -> Tensor:
    """The variance (N, C) as of a smaller strength where its term would exceed ``max_ratio`` times the logits' spread.

    Nothing is read on the host, and a variance within the limit is returned to the bit.
    """
    added, spread = variance_and_spread(variance, logits, strength)
    return variance * (max_ratio * spread / added).nan_to_num(nan=1.0, posinf=1.0).clamp(max=1.0)


class StrengthMonitor:
    """Warns, while the loss is still finite, if the variance term is far larger than differences between the logits.

    On the CPU it looks at every call: a run that diverges does so within ten steps. Elsewhere it looks at calls 1, 2,
    4, 8, ... and whenever the strength has grown by a tenth; a look leaves its result on the device, and results are
    read every hundredth call: no look makes the host wait.
    """

    def __init__(self) -> None:
        self._calls, self._seen_strength, self._warned = 0, 0.0, _RATIO
        self._worst: Tensor | None = None

    def check(self, variance: Tensor, logits: Tensor, strength: float) -> None:
        """Look at strength/2 * variance (N, C) and at what the logits (N, C) of a sample vary by, on average."""
        self._calls += 1
        if self._worst is not None and self._calls % READ_EVERY == 1:
            self._warn(self._worst)
            self._worst = None
        grown, power = strength >= _GROWTH * self._seen_strength, self._calls & (self._calls - 1) == 0
        if strength == 0 or not (grown or power or on_host(variance)):
            return
        self._seen_strength = strength if grown else self._seen_strength
        added, spread = variance_and_spread(variance, logits, strength)
        look = torch.stack([added / spread, added, spread, torch.full_like(added, strength)])
        if on_host(look):
            self._warn(look)
        else:
            self._worst = look if self._worst is None else torch.where(look[0] > self._worst[0], look, self._worst)

    def _warn(self, look: Tensor) -> None:
        ratio, added, spread, strength = look.tolist()
        if not ratio > self._warned:
            return
        self._warned = 2 * ratio  # again only if it becomes much worse
        warn(
            f"the variance term averages {added:.3g} where the logits of a sample vary by {spread:.3g}: at strength "
            f"{strength:.3g} it swamps them, and training may diverge; decay the learning rate, lower lambda_0, clip "
            "gradients, or use bound='tilted'"
        )
