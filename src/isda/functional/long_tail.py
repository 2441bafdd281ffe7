"""Shifted means, margin offsets and class weights for long-tailed data.

For augmented features a~ ~ N(a + alpha delta_y, lambda Sigma_y) and offsets o_yj with o_yy = 0 margins are Gaussian,
z~_j - z~_y ~ N(z_j - z_y + alpha (w_j - w_y)' delta_y, lambda (w_j - w_y)' Sigma_y (w_j - w_y)). Jensen's inequality
and E[exp(N(m, v))] = exp(m + v / 2), the two steps that prove Prop. 1, then give

    E[log sum_j exp(z~_j - z~_y + o_yj)] <= log sum_j exp(z_j - z_y + lambda/2 (w_j - w_y)' Sigma_y (w_j - w_y)
                                                          + alpha (w_j - w_y)' delta_y + o_yj).

The last two terms do not depend on the draw: to every bound of isda.functional.bounds they are part of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isda._utils import checks


def mean_shift(weight: Tensor, shift: Tensor, classes: Tensor) -> Tensor:
    """(K, C) table (w_j - w_y)' delta_y for y = classes[k]: by how much a moved mean moves each margin.

    Args:
        weight: (C, A).
        shift: (C, A) the shifts delta of all classes.
        classes: (K,) class indices.

    Returns:
        (K, C); the own class is exactly 0.

    Example:
        >>> weight = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
        >>> mean_shift(weight, torch.ones(2, 2), torch.tensor([0, 1]))
        tensor([[ 0.,  3.],
                [-3.,  0.]])
    """
    table = shift.index_select(0, classes) @ (weight - weight.detach().mean(0)).t()
    return table - table.gather(1, classes.unsqueeze(1))


def class_counts(counts: Tensor | Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """(C,) how many samples each class has, checked: finite numbers > 0, of two classes at least.

    Example:
        >>> class_counts([500, 5])
        tensor([500.,   5.], dtype=torch.float64)
    """
    # On the host, where it is looked at, whatever device tensors are made on here.
    given = counts if isinstance(counts, Tensor) else torch.tensor(list(counts), device="cpu")
    sizes = given.detach().to("cpu", dtype)
    if sizes.ndim != 1 or len(sizes) < 2:
        raise ValueError(f"counts must have shape (C,) for at least two classes, got {checks.shape_of(sizes)}")
    if not bool((sizes > 0).all() and sizes.isfinite().all()):
        raise ValueError(f"counts must be finite numbers > 0, got {sizes.min().item():g} to {sizes.max().item():g}")
    return sizes


def prior_offsets(counts: Tensor | Sequence[float], tau: float = 1.0) -> Tensor:
    """(C, C) logit adjustment (Menon et al., ICLR 2021): o_yj = tau (log pi_j - log pi_y), pi the classes' shares.

    Cross-entropy of z_j + o_yj is that of z_j + tau log pi_j: the network learns logits of a balanced world.

    Example:
        >>> prior_offsets([90, 10]).exp()
        tensor([[1.0000, 0.1111],
                [9.0000, 1.0000]], dtype=torch.float64)
    """
    prior = checks.check_number("tau", tau) * class_counts(counts).log()
    return prior - prior.unsqueeze(1)


def label_margins(counts: Tensor | Sequence[float], max_margin: float = 0.5) -> Tensor:
    """(C,) LDAM's margins (Cao et al., NeurIPS 2019): Delta_c proportional to n_c^(-1/4), the largest ``max_margin``.

    Example:
        >>> label_margins([160000, 10000, 1])
        tensor([0.0250, 0.0500, 0.5000], dtype=torch.float64)
    """
    checks.check_number("max_margin", max_margin)
    margins = class_counts(counts) ** -0.25
    return max_margin * margins / margins.max()


def class_balanced_weights(counts: Tensor | Sequence[float], beta: float = 0.9999) -> Tensor:
    """(C,) weights (1 - beta) / (1 - beta^n_c), one over the effective number of samples (Cui et al., CVPR 2019).

    They sum to C. beta = 0 weighs all classes alike; towards 1 the weights become inverse frequencies.

    Example:
        >>> class_balanced_weights([1, 2], beta=0.5)
        tensor([1.2000, 0.8000], dtype=torch.float64)
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta!r}")
    sizes = class_counts(counts)
    # 1 - beta^n through expm1: beta^n is 1 up to rounding for small classes and beta near 1.
    weights = torch.ones_like(sizes) if beta == 0 else 1 / -torch.expm1(sizes * math.log(beta))
    return weights * (len(weights) / weights.sum())
