"""What every semi-supervised algorithm is here: a scalar of the student and an unlabelled batch, and what it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from isda.semi.batch import UnlabelledBatch

__all__ = ["NoOptions", "Regulariser", "Surroundings"]


class Surroundings(NamedTuple):
    """What a regulariser is made for."""

    network: nn.Module
    """The student, before it is wrapped or compiled."""
    samples: int
    """Size of the training set that indices of unlabelled batches refer to."""
    num_classes: int
    device: torch.device
    dtype: torch.dtype
    ramp_up_steps: int
    """Over which the weight of the regulariser grows."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """For methods without any."""


class Regulariser(nn.Module, ABC):
    """L_regularization of the paper's overall objective, without its weight eta_2.

    Whatever must survive a resume (teacher, ensemble) is in the state_dict.
    """

    name: ClassVar[str]
    """As users write it."""
    Options: ClassVar[type] = NoOptions
    """A dataclass: what a user may set."""

    @classmethod
    def create(cls, surroundings: Surroundings, **options: Any) -> Regulariser:
        """The regulariser of a run; ``options`` as in Options."""
        return cls(**options)

    @abstractmethod
    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """The regulariser of one step, a scalar with gradient into the student.

        Args:
            network: the student, which may be wrapped or compiled; maps images to logits.
            view: the unlabelled samples.
            logits: (N, C) the student's logits of ``view.images``, with gradient: computed once for all terms.
        """

    def after_step(self, network: nn.Module, step: int) -> None:
        """After each optimiser step; ``step`` is how many steps came before it: 0, 1, 2, ..."""

    def after_epoch(self) -> None:
        """After each pass over the unlabelled samples."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network whose predictions are the method's result: the student, unless a method says otherwise."""
        return network
