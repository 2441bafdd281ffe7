"""What a training step minimises: named loss terms of a network and a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

__all__ = ["Method", "Outcome"]

_Pass = TypeVar("_Pass")


class Outcome(NamedTuple):
    """What a method makes of a batch."""

    terms: dict[str, Tensor]
    """Scalar loss terms by name; their sum is minimised."""
    outputs: Any
    """What the task measures on training batches, such as the logits of labelled images."""


class Method(nn.Module, ABC):
    """Maps a network and a batch to loss terms; whatever must survive a resume is in its state_dict."""

    @abstractmethod
    def forward(self, network: nn.Module, batch: Any) -> Outcome:
        """The loss terms of one training step."""

    def prepare(self, batch: Any) -> Any:
        """The batch as the step sees it, made once per step: as it is, unless a method mixes its samples."""
        return batch

    def differentiate(
        self, make_pass: Callable[[], _Pass], network: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> _Pass:
        """Leave the gradients of a step on the parameters, and return the pass that is measured.

        ``make_pass`` goes forward and back through the network once, over all processes together, and adds to the
        gradients. That is all, unless a method says otherwise.
        """
        return make_pass()

    def measures(self) -> dict[str, float]:
        """Numbers worth recording with each epoch, such as ISDA's current strength."""
        return {}

    def after_step(self, network: nn.Module) -> None:
        """After each optimiser step."""

    def after_epoch(self) -> None:
        """After each epoch."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network that is judged: the trained one, unless a method says otherwise."""
        return network
