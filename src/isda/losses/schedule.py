"""The strength schedule lambda = lambda_0 * t / T, with t in a buffer and no read from the device per step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["StrengthSchedule"]


class StrengthSchedule(nn.Module):
    """lambda = lambda_0 * t / T, section 4.1 of the paper; constant lambda_0 without a T.

    Args:
        lambda_0: final strength.
        total_steps: T, or None for a constant strength.
        device: where the step counter lives.
    """

    step: Tensor
    microstep: Tensor

    def __init__(self, lambda_0: float, total_steps: int | None, device: torch.device | str | None = None) -> None:
        super().__init__()
        if not lambda_0 >= 0 or lambda_0 == float("inf"):
            raise ValueError(f"lambda_0 must be a finite number >= 0, got {lambda_0!r}")
        if total_steps is not None and (int(total_steps) != total_steps or total_steps < 1):
            raise ValueError(f"total_steps must be a positive integer or None, got {total_steps!r}")
        self.lambda_0, self.total_steps = float(lambda_0), total_steps
        self.advance_every = 1
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("microstep", torch.zeros((), dtype=torch.int64, device=device))
        self._step_on_host, self._microstep_on_host = _Mirror(), _Mirror()

    @property
    def strength(self) -> float:
        """The current lambda."""
        if self.total_steps is None:
            return self.lambda_0
        return self.lambda_0 * min(self._step_on_host.read(self.step), self.total_steps) / self.total_steps

    def chosen(self, strength: float | None) -> float:
        """The lambda of one call: as given, or the schedule's."""
        if strength is None:
            return self.strength
        strength = float(strength)
        if not strength >= 0 or strength == float("inf"):
            raise ValueError(f"strength must be a finite number >= 0, got {strength!r}")
        return strength

    def advance(self) -> None:
        """Count one training forward; t moves after ``advance_every`` of them and stops at T."""
        if self.advance_every > 1:
            done = self._microstep_on_host.read(self.microstep) + 1
            if done < self.advance_every:
                self._microstep_on_host.write(self.microstep.add_(1), done)
                return
            self._microstep_on_host.write(self.microstep.zero_(), 0)
        done = self._step_on_host.read(self.step)
        if self.total_steps is None or done < self.total_steps:
            self._step_on_host.write(self.step.add_(1), done + 1)


class _Mirror:
    """The value of a counter on the host; the buffer is read only after somebody else changed it."""

    def __init__(self) -> None:
        self._address, self._version, self._value = 0, -1, 0

    def read(self, buffer: Tensor) -> int:
        if (self._address, self._version) != (buffer.data_ptr(), buffer._version):
            self.write(buffer, int(buffer))
        return self._value

    def write(self, buffer: Tensor, value: int) -> None:
        self._address, self._version, self._value = buffer.data_ptr(), buffer._version, value
