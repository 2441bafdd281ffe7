"""Large-margin softmax (Liu et al., ICML 2016): the angle to the own class's weight counts several times."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.autocast import outside_autocast
from isda.choices import check_choice
from isda.losses.rivals.rows import REDUCTIONS, check_features, check_number, check_rows, wide

__all__ = ["LargeMarginLoss", "large_margin_logits", "margin_function"]

_LARGEST = 10
"""Of the margins; 4 is the largest that its authors have."""


def margin_function(cosine: Tensor, margin: int) -> Tensor:
    """psi(theta) = (-1)^k cos(m theta) - 2k for theta in [k pi / m, (k + 1) pi / m], of cos(theta).

    cos(m theta) is Chebyshev's polynomial T_m(cos theta): T_0 = 1, T_1 = c, T_n = 2 c T_(n-1) - T_(n-2), the binomial
    expansion of the publication in another order.

    Args:
        cosine: any shape, in -1..1.
        margin: m >= 1; psi is the cosine itself for m = 1.

    Example:
        >>> margin_function(torch.tensor([1.0, 0.0, -1.0]), margin=2)
        tensor([ 1., -1., -3.])
    """
    before, power = torch.ones_like(cosine), cosine
    for _ in range(margin - 1):
        before, power = power, 2 * cosine * power - before
    k = torch.zeros_like(cosine)
    for j in range(1, margin):
        k = k + (cosine < math.cos(j * math.pi / margin))
    return (1 - 2 * (k % 2)) * power - 2 * k


def large_margin_logits(
    logits: Tensor, targets: Tensor, features: Tensor, weight: Tensor, margin: int, annealing: float | Tensor = 0.0
) -> Tensor:
    """(N, C) logits whose own-class entries are z_y + |w_y| |x| (psi(theta) - cos theta) / (1 + lambda).

    Without a bias that is the publication's (lambda |w_y| |x| cos theta + |w_y| |x| psi(theta)) / (1 + lambda). A bias
    is part of z_y and stays outside the angle.

    Args:
        logits: (N, C) outputs of the classifier.
        targets: (N,) class indices y.
        features: (N, A) its inputs x.
        weight: (C, A) its weights.
        margin: m.
        annealing: lambda.
    """
    own = weight.index_select(0, targets)
    lengths = torch.linalg.vector_norm(own, dim=1) * torch.linalg.vector_norm(features, dim=1)
    # Below it there is no angle to speak of; the quotient stays harmless.
    cosine = (own * features).sum(1) / lengths.clamp_min(torch.finfo(lengths.dtype).eps)
    change = lengths * (margin_function(cosine, margin) - cosine) / (1 + annealing)
    is_own = targets.unsqueeze(1) == torch.arange(logits.shape[1], device=logits.device)
    return logits + is_own * change.unsqueeze(1)


class LargeMarginLoss(nn.Module):
    """Cross-entropy of ``large_margin_logits``; m = 1, and eval mode, are cross-entropy exactly.

    lambda = max(lambda_min, base (1 + gamma t)^(-power)) at training step t = 1, 2, ... lets the margin in slowly. The
    defaults are those of the authors' code for CIFAR-10, where they make 30,000 steps; gamma belongs to that length.

    Args:
        margin: m, an integer from 1 to 10; 2 in the authors' code for CIFAR, up to 4 in the publication.
        base: lambda at the start; 0 for no annealing.
        gamma: how fast it falls.
        power: with which power.
        lambda_min: what it does not fall below; the authors advise 5 or 10 on large and difficult sets.
        reduction: mean, sum or none.
        device: where the step counter lives.

    Shape:
        logits (N, C), targets (N,), features (N, A), weight (C, A); a scalar, or (N,) for reduction none.

    Example:
        >>> criterion, weight = LargeMarginLoss(margin=2, base=0.0), torch.eye(2)
        >>> features = torch.tensor([[0.0, 1.0]])
        >>> criterion(features @ weight.T, torch.tensor([1]), features=features, weight=weight)  # aligned: as ever
        tensor(0.3133)
        >>> criterion(features @ weight.T, torch.tensor([0]), features=features, weight=weight)  # -1 instead of 0
        tensor(2.1269)
    """

    step: Tensor

    def __init__(
        self,
        margin: int = 2,
        *,
        base: float = 1000.0,
        gamma: float = 2e-5,
        power: float = 45.0,
        lambda_min: float = 0.0,
        reduction: str = "mean",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if margin not in range(1, _LARGEST + 1):
            raise ValueError(f"margin must be an integer from 1 to {_LARGEST}, got {margin!r}")
        self.margin = int(margin)
        self.base, self.gamma = check_number("base", base), check_number("gamma", gamma)
        self.power, self.lambda_min = check_number("power", power), check_number("lambda_min", lambda_min)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def annealing(self) -> Tensor:
        """The lambda of the last training step; it is computed where the step is counted, without a read."""
        falling = self.base * (1 + self.gamma * self.step.to(torch.float32)) ** -self.power
        return falling.clamp_min(self.lambda_min)

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor, weight: Tensor) -> Tensor:
        """The loss; in training mode it also counts the step."""
        check_rows(logits, targets)
        check_features(logits, features, weight)
        logits, targets = wide(logits), targets.long()
        if self.training:
            self.step.add_(1)
            with outside_autocast(logits.device):
                logits = large_margin_logits(logits, targets, wide(features), wide(weight), self.margin, self.annealing)
        return F.cross_entropy(logits, targets, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"margin={self.margin}, base={self.base:g}, gamma={self.gamma:g}, power={self.power:g}"
