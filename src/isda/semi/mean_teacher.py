"""Mean teacher (Tarvainen & Valpola, 2017): the student should agree with the running average of its own weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isda import distributed
from isda.choices import check_choice
from isda.semi.batch import UnlabelledBatch
from isda.semi.distance import DISTANCES
from isda.semi.regulariser import Regulariser, Surroundings

__all__ = ["MeanTeacher", "MeanTeacherOptions", "averaging_decay"]


def averaging_decay(step: int, decay: float, ramp_up_decay: float | None = None, ramp_up_steps: int = 0) -> float:
    """min(1 - 1 / (t + 1), alpha) of step t = 0, 1, ...: a true mean at first, an exponential one later.

    Args:
        step: t.
        decay: alpha, once the ramp-up of the consistency weight is over.
        ramp_up_decay: alpha until then; the same by default.
        ramp_up_steps: how long that is.

    Example:
        >>> [averaging_decay(step, 0.999, 0.99, 40_000) for step in (0, 1, 1000, 40_000)]
        [0.0, 0.5, 0.99, 0.999]
    """
    alpha = decay if ramp_up_decay is None or step >= ramp_up_steps else ramp_up_decay
    return min(1 - 1 / (step + 1), alpha)


@dataclass(frozen=True, kw_only=True)
class MeanTeacherOptions:
    """What may follow ``mean-teacher:``; see MeanTeacher."""

    teacher_decay: float = 0.999
    ramp_up_teacher_decay: float | None = None
    distance: str = "mse"


class MeanTeacher(Regulariser):
    """mean_i d(student(x_i), teacher(x'_i)) where theta' <- a theta' + (1 - a) theta after each step.

    The teacher sees the second view, with dropout and batch statistics of its own, as the authors' does. Only weights
    are averaged; the teacher's running statistics come from its own passes (averaged over processes), so that they
    fit its weights. It is the teacher that is evaluated.

    Args:
        network: the student, from which the teacher starts.
        teacher_decay: alpha of `averaging_decay`; 0.999 in the publication, where the ramp-up on SVHN has 0.99.
        ramp_up_teacher_decay: alpha during the ramp-up.
        ramp_up_steps: length of the ramp-up.
        distance: "mse", the authors' choice, or "kl".
    """

    name = "mean-teacher"
    Options = MeanTeacherOptions

    def __init__(
        self,
        network: nn.Module,
        teacher_decay: float = 0.999,
        ramp_up_teacher_decay: float | None = None,
        ramp_up_steps: int = 0,
        distance: str = "mse",
    ) -> None:
        super().__init__()
        for name, alpha in (("teacher_decay", teacher_decay), ("ramp_up_teacher_decay", ramp_up_teacher_decay)):
            if alpha is not None and not 0 <= alpha < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {alpha!r}")
        self.teacher_decay, self.ramp_up_teacher_decay = teacher_decay, ramp_up_teacher_decay
        self.ramp_up_steps = ramp_up_steps
        self.distance = check_choice("distance", distance, tuple(DISTANCES))
        self.teacher = copy.deepcopy(network).requires_grad_(False)

    @classmethod
    def create(cls, surroundings: Surroundings, **options: Any) -> MeanTeacher:
        """A teacher that starts from the student."""
        return cls(surroundings.network, ramp_up_steps=surroundings.ramp_up_steps, **options)

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; runs the teacher on the second view."""
        with torch.no_grad():
            target = torch.softmax(view.passed(self.teacher, view.needed("second")), 1)
        return DISTANCES[self.distance](logits, target).mean()

    @torch.no_grad()
    def after_step(self, network: nn.Module, step: int) -> None:
        """Move the teacher towards the student."""
        decay = averaging_decay(step, self.teacher_decay, self.ramp_up_teacher_decay, self.ramp_up_steps)
        for mean, parameter in zip(self.teacher.parameters(), network.parameters(), strict=True):
            mean.lerp_(parameter, 1 - decay)
        if distributed.world_size() > 1:
            self._share_statistics()

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The teacher."""
        return self.teacher

    def _share_statistics(self) -> None:
        """Each process normalised its own part of the batch: continue with the mean of what they found."""
        buffers = [buffer for buffer in self.teacher.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        together = torch.cat([buffer.flatten() for buffer in buffers])
        dist.all_reduce(together)
        together /= distributed.world_size()
        for buffer, part in zip(buffers, together.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))
