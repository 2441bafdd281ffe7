"""The strength schedule lambda = lambda_0 * t / T, with t in a buffer and no read from the device per step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        self._mirror = [0, -1, 0]

    @property
    def strength(self) -> float:
        """The current lambda."""
        if self.total_steps is None:
            return self.lambda_0
        return self.lambda_0 * min(self._host_step(), self.total_steps) / self.total_steps

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
            self.microstep.add_(1)
            if int(self.microstep) < self.advance_every:
                return
            self.microstep.zero_()
        done = self._host_step()
        if self.total_steps is None or done < self.total_steps:
            step = self.step.add_(1)
            self._mirror[:] = step.data_ptr(), step._version, done + 1

    def _host_step(self) -> int:
        """The step on the host; the buffer is read only after somebody else changed it."""
        step = self.step
        stamp = [step.data_ptr(), step._version]
        if self._mirror[:2] != stamp:
            self._mirror[:] = *stamp, int(step)
        return self._mirror[2]
