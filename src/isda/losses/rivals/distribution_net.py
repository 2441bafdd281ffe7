"""DistributionNet (Yu et al., ICCV 2019): the features of a sample are a Gaussian whose width is learned."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.autocast import outside_autocast
from isda.choices import check_choice
from isda.distributed import add_up
from isda.functional.entropy import diagonal_gaussian_entropy
from isda.losses.rivals.rows import REDUCTIONS, check_features, check_number, check_rows, reduced, wide

__all__ = ["DistributionNet", "log_softplus", "sampled_cross_entropy"]

_LOW = -20.0
_MOST = 100
"""Draws for each sample; they are all in memory together."""


def log_softplus(values: Tensor) -> Tensor:
    """log(log(1 + e^s)), which is s where e^s is too small to be seen beside 1.

    Example:
        >>> log_softplus(torch.tensor([-200.0, -100.0]))
        tensor([-200., -100.])
    """
    return F.softplus(values.clamp_min(_LOW)).log() + (values - _LOW).clamp_max(0)


def sampled_cross_entropy(logits: Tensor, targets: Tensor, weight: Tensor, deviations: Tensor, noise: Tensor) -> Tensor:
    """(N,) mean over M draws of the cross-entropy of x + sigma e, reparameterised: z + W (sigma e).

    Args:
        logits: (N, C) of the features x themselves.
        targets: (N,) class indices.
        weight: (C, A) of the classifier.
        deviations: (N, A) sigma.
        noise: (N, M, A) standard normal e.
    """
    drawn = logits.unsqueeze(1) + (deviations.unsqueeze(1) * noise) @ weight.t()
    aims = targets.unsqueeze(1).expand(drawn.shape[:2])
    return F.cross_entropy(drawn.flatten(0, 1), aims.flatten(), reduction="none").view(aims.shape).mean(1)


class DistributionNet(nn.Module):
    """(-log p_y(x) + s E[-log p_y(x + sigma(x) e)]) / (1 + s) + u max(0, margin - mean entropy), e ~ N(0, I).

    sigma(x) = softplus(V x + v) for each feature, V and v trained with the network. Cross-entropy alone would shrink
    sigma; the last term asks the entropies of a batch's Gaussians, per feature and on average, to stay above a margin.
    A zero sigma with u = 0 is cross-entropy, and so is eval mode. The division by 1 + s is ours; the other numbers are
    those of the authors' code. Theirs reads sigma from the last feature maps; here it is read from the features.

    Args:
        feature_dim: A.
        sample_weight: s, weight of the drawn features beside the mean.
        samples: M draws for each sample and step, 1 to 100.
        uncertainty_weight: u.
        deviation: the margin as the sigma whose entropy it is: log(deviation) + (1 + log 2 pi) / 2 for each feature.
        reduction: mean, sum or none; the uncertainty term is added to each sample.
        device: where the parameters live.
        dtype: their type, at least float32.

    Shape:
        logits (N, C), targets (N,), features (N, A), weight (C, A); a scalar, or (N,) for reduction none.

    Example:
        >>> head, criterion = nn.Linear(8, 3), DistributionNet(feature_dim=8)
        >>> features, targets = torch.randn(4, 8), torch.tensor([0, 2, 1, 2])
        >>> criterion(head(features), targets, features=features, weight=head.weight).shape
        torch.Size([])
        >>> sorted(name for name, _ in criterion.named_parameters())
        ['head.bias', 'head.weight']
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        sample_weight: float = 0.1,
        samples: int = 1,
        uncertainty_weight: float = 0.001,
        deviation: float = 5.0,
        reduction: str = "mean",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if samples not in range(1, _MOST + 1):
            raise ValueError(f"samples must be an integer from 1 to {_MOST}, got {samples!r}")
        if not 0 < deviation < math.inf:
            raise ValueError(f"deviation must be a finite number > 0, got {deviation!r}")
        self.samples, self.deviation = int(samples), float(deviation)
        self.sample_weight = check_number("sample_weight", sample_weight)
        self.uncertainty_weight = check_number("uncertainty_weight", uncertainty_weight)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        dtype = torch.promote_types(torch.float32 if dtype is None else dtype, torch.float32)
        self.head = nn.Linear(feature_dim, feature_dim, device=device, dtype=dtype)
        nn.init.zeros_(self.head.bias)

    @property
    def margin(self) -> float:
        """The entropy per feature to keep, in nats."""
        return math.log(self.deviation) + 0.5 * (1 + math.log(2 * math.pi))

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor, weight: Tensor) -> Tensor:
        """The loss; the draws are torch's next ones on the device of the features."""
        check_rows(logits, targets)
        check_features(logits, features, weight, dim=self.head.in_features)
        logits, targets = wide(logits), targets.long()
        if not self.training:
            return F.cross_entropy(logits, targets, reduction=self.reduction)
        rows = F.cross_entropy(logits, targets, reduction="none")
        with outside_autocast(logits.device):
            widths = self.head(features.to(self.head.weight.dtype))
            if self.sample_weight:
                noise = torch.randn(len(rows), self.samples, widths.shape[1], dtype=widths.dtype, device=widths.device)
                drawn = sampled_cross_entropy(logits, targets, wide(weight), F.softplus(widths), noise)
                rows = (rows + self.sample_weight * drawn) / (1 + self.sample_weight)
            if self.uncertainty_weight:
                rows = rows + self.uncertainty_weight * self._uncertainty(widths)
        return reduced(rows, self.reduction)

    def _uncertainty(self, widths: Tensor) -> Tensor:
        """`feature_uncertainty_loss` of all processes' samples: this process's part of it, a mean over its own ones.

        Whether the entropy is short is asked of all of them; the parts, weighed by samples, then add up to the hinge.
        """
        entropy = diagonal_gaussian_entropy(2 * log_softplus(widths)) / widths.shape[1]
        total, count = add_up(torch.stack([entropy.detach(), torch.ones_like(entropy)]).sum(1)).unbind()
        return (total < self.margin * count) * (self.margin - entropy.mean())

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"sample_weight={self.sample_weight:g}, uncertainty_weight={self.uncertainty_weight:g}"
