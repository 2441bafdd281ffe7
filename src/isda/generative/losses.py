"""What the players of a generative adversarial network minimise, as functions of scores; all means over a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "code_loss",
    "gradient_penalty",
    "logistic_discriminator",
    "logistic_generator",
    "wasserstein_critic",
    "wasserstein_generator",
]


def logistic_discriminator(real: Tensor, generated: Tensor) -> Tensor:
    """-E log s(D(x)) - E log(1 - s(D(G(z)))), s the logistic function (Goodfellow et al., 2014).

    Args:
        real: (N,) scores of real images.
        generated: (M,) scores of generated ones.

    Example:
        >>> round(logistic_discriminator(torch.zeros(2), torch.zeros(2)).item(), 4)
        1.3863
    """
    return F.softplus(-real).mean() + F.softplus(generated).mean()


def logistic_generator(generated: Tensor) -> Tensor:
    """-E log s(D(G(z))), the form that does not saturate.

    Example:
        >>> round(logistic_generator(torch.zeros(2)).item(), 4)
        0.6931
    """
    return F.softplus(-generated).mean()


def wasserstein_critic(real: Tensor, generated: Tensor) -> Tensor:
    """E f(G(z)) - E f(x): minus the critic's estimate of the Wasserstein distance (Arjovsky et al., 2017).

    Example:
        >>> wasserstein_critic(torch.tensor([1.0, 2.0]), torch.tensor([0.5])).item()
        -1.0
    """
    return generated.mean() - real.mean()


def wasserstein_generator(generated: Tensor) -> Tensor:
    """-E f(G(z)).

    Example:
        >>> wasserstein_generator(torch.tensor([1.0, 2.0])).item()
        -1.5
    """
    return -generated.mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, generated: Tensor, share: Tensor) -> Tensor:
    """E (|grad f(x')| - 1)^2 at x' = e x + (1 - e) G(z) (Gulrajani et al., 2017).

    Args:
        critic: images (N, C, H, W) to scores (N,), each a function of its own image.
        real: (N, C, H, W).
        generated: (N, C, H, W).
        share: (N,) the e of each pair, in [0, 1].

    Example:
        >>> images = torch.zeros(2, 1, 1, 1)
        >>> gradient_penalty(lambda x: 3 * x.flatten(), images, images, torch.zeros(2)).item()
        4.0
    """
    share = share.view(-1, 1, 1, 1)
    between = (share * real + (1 - share) * generated).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    # At a slope of exactly zero the norm has no gradient: a number far below any that matters is added.
    norms = (slopes.flatten(1).square().sum(1) + 1e-24).sqrt()
    return (norms - 1).square().mean()


def code_loss(mean: Tensor, log_variance: Tensor, codes: Tensor) -> Tensor:
    """-E sum_i log N(c_i; m_i, v_i): the codes' part of infoGAN's bound on the mutual information, without H(c).

    I(c; G(z, c)) >= H(c) + E log Q(c | G(z, c)), with Q a Gaussian (Chen et al., 2016).

    Args:
        mean: (N, codes) what the discriminator believes.
        log_variance: (N, codes).
        codes: (N, codes) what the generator was given.

    Example:
        >>> zero = torch.zeros(1, 1)
        >>> round(code_loss(zero, zero, zero).item(), 4)
        0.9189
    """
    squares = (codes - mean).square() * torch.exp(-log_variance)
    return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(1).mean()
