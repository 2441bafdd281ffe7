"""A method of a user's own."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from isda.lab.engine import Outcome
from isda.lab.methods.base import ClassificationMethod


class Focal(ClassificationMethod):
    """The mean of -(1 - p_y)^gamma log p_y (Lin et al., 2017)."""

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What may follow the colon."""

        gamma: float = 2.0

    grid: ClassVar = {"gamma": (0.5, 1.0, 2.0, 5.0)}

    def __init__(self, options, network, config):
        super().__init__()
        self.gamma = options.gamma

    def forward(self, network, batch):
        logits = network(batch.images)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Outcome({"focal": ((1 - (-losses).exp()) ** self.gamma * losses).mean()}, logits)
