"""Virtual adversarial training (Miyato et al., TPAMI 2018): the prediction should not change in the worst direction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isda.semi.batch import UnlabelledBatch
from isda.semi.batch_norm import frozen_batch_norm
from isda.semi.distance import entropy, kl_divergence
from isda.semi.random_state import RandomState
from isda.semi.regulariser import Regulariser

__all__ = ["VAT", "VATOptions"]


@dataclass(frozen=True, kw_only=True)
class VATOptions:
    """What may follow ``vat:``; see VAT."""

    epsilon: float = 8.0
    xi: float = 1e-3
    power_iterations: int = 1
    entropy_minimisation: bool = False


class VAT(Regulariser):
    """mean_i KL(p(x_i) || p(x_i + r_i)), r_i = epsilon * the direction of norm 1 that raises it most.

    The direction is the dominant eigenvector of the KL's Hessian at r = 0, found by power iteration with finite
    differences: d <- the gradient of KL(p(x) || p(x + xi d)), normalised, from a random d. That the KL and its gradient
    vanish at r = 0 takes the same network in all passes: they see the same dropout masks (so do those of the authors'
    code, through its fixed seeds), and the same batch alone in batch normalisation, whose running statistics stay as
    they are. Hence the prediction at the clean images is made here, without gradient, rather than taken from the
    logits of a batch with labelled images in it.

    Args:
        epsilon: norm of the perturbation of one sample, in the units of the images. With augmentation 8 on whitened
            CIFAR-10 and 3.5 on SVHN with pixels in -0.5..0.5, without it 10 and 2.5 (the authors' code).
        xi: step of the finite difference. The authors' code has 1e-6, at which float32 rounds the difference away: what
            is left is a direction of rounding errors, which raises the KL too, but less. With 1e-3 float32 finds the
            direction that 1e-6 gives in float64.
        power_iterations: 1 in the authors' code.
        entropy_minimisation: add the mean entropy of the prediction, the publication's VAT + EntMin.
    """

    name = "vat"
    Options = VATOptions

    def __init__(
        self, epsilon: float = 8.0, xi: float = 1e-3, power_iterations: int = 1, entropy_minimisation: bool = False
    ) -> None:
        super().__init__()
        if not epsilon > 0 or not xi > 0:
            raise ValueError(f"epsilon and xi must be positive, got {epsilon!r} and {xi!r}")
        if int(power_iterations) != power_iterations or power_iterations < 0:
            raise ValueError(f"power_iterations must be an integer >= 0, got {power_iterations!r}")
        self.epsilon, self.xi = float(epsilon), float(xi)
        self.power_iterations, self.entropy_minimisation = int(power_iterations), entropy_minimisation

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; 2 + power_iterations passes of the student over the images."""
        images = view.images.detach()
        direction = torch.randn_like(images)
        state = RandomState(images.device)
        with frozen_batch_norm(network):
            with torch.no_grad():
                target = torch.softmax(network(images), 1)

            def divergence(perturbation: Tensor) -> Tensor:
                with state.replayed():
                    return kl_divergence(network(images + perturbation), target)

            for _ in range(self.power_iterations):
                step = (self.xi * _unit(direction)).requires_grad_()
                with torch.enable_grad():
                    (direction,) = torch.autograd.grad(divergence(step).sum(), step)
            loss = divergence(self.epsilon * _unit(direction)).mean()
        return loss + entropy(logits).mean() if self.entropy_minimisation else loss


def _unit(direction: Tensor) -> Tensor:
    """Each sample's direction at norm 1; zero where it has none."""
    flat = direction.flatten(1)
    # The squares of a gradient of 1e-23 would vanish in float32.
    tiny = torch.finfo(flat.dtype).tiny
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    return (flat / flat.norm(dim=1, keepdim=True).clamp_min(tiny)).view_as(direction)
