"""Adam (Kingma and Ba, ICLR 2015) for one tensor, with its state in buffers: it is saved with the module it serves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["AdaptiveMoments"]

FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8


class AdaptiveMoments(nn.Module):
    """Running means of a gradient and of its square; torch's own optimisers keep theirs outside of a state_dict.

    Example:
        >>> tensor = torch.zeros(2)
        >>> AdaptiveMoments(tensor).descend(tensor, torch.tensor([3.0, -0.1]), lr=0.5)
        >>> tensor
        tensor([-0.5000,  0.5000])
    """

    first: Tensor
    second: Tensor
    steps: Tensor

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros_like(tensor, requires_grad=False))
        self.register_buffer("second", torch.zeros_like(tensor, requires_grad=False))
        self.register_buffer("steps", torch.zeros((), dtype=tensor.dtype, device=tensor.device))

    @torch.no_grad()
    def descend(self, tensor: Tensor, gradient: Tensor, lr: float) -> None:
        """Move the tensor one step down."""
        self.steps.add_(1)
        self.first.lerp_(gradient, 1 - FIRST)
        self.second.lerp_(gradient.square(), 1 - SECOND)
        mean = self.first / (1 - FIRST**self.steps)
        size = (self.second / (1 - SECOND**self.steps)).sqrt()
        tensor.sub_(lr * mean / (size + SMALL))
