"""The Pi-model (Laine & Aila, 2017): two passes of the student over two views of a sample should agree."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.semi.batch import UnlabelledBatch
from isda.semi.regulariser import Regulariser

__all__ = ["PiModel"]


class PiModel(Regulariser):
    """1 / (C |B|) sum_i ||p_i - q_i||^2 for the predictions p, q of two views under two draws of dropout.

    Both passes are the student's and both get gradient, as in the authors' code; that of the two together is in
    expectation twice that of one pass alone.
    """

    name = "pi-model"

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; runs the student on the second view."""
        second = view.passed(network, view.needed("second"))
        return (torch.softmax(logits, 1) - torch.softmax(second, 1)).square().mean()
