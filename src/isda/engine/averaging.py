"""The exponential moving average of a network's weights, which is evaluated in place of the network."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["AveragedNetwork"]


class AveragedNetwork(nn.Module):
    """theta' <- d theta' + (1 - d) theta after each step, for weights and running statistics; theta' = theta at first.

    torch.optim.swa_utils.AveragedModel asks the device in every step how many steps there were; here the host knows.

    Args:
        network: to average.
        decay: d.

    Example:
        >>> network = nn.Linear(1, 1, bias=False)
        >>> average = AveragedNetwork(network, decay=0.75)
        >>> for value in (4.0, 8.0):
        ...     _ = nn.init.constant_(network.weight, value)
        ...     average.update(network)
        >>> average.module.weight.item()
        5.0
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay, self.steps = decay, 0
        self.module = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network after a step."""
        pairs = list(zip(_tensors(self.module), _tensors(network), strict=True))
        smooth = [(mean, value) for mean, value in pairs if mean.is_floating_point()] if self.steps else []
        if smooth:
            means, values = map(list, zip(*smooth, strict=True))
            torch._foreach_lerp_(means, values, 1 - self.decay)
        for mean, value in pairs:
            if not self.steps or not mean.is_floating_point():
                mean.copy_(value)
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        """The number of steps, for the state_dict."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Any) -> None:
        """Take the number of steps from a state_dict."""
        self.steps = int(state)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]
