"""The losses that ISDA is compared with in its paper.

`SampleLoss`, the base of those that can be combined with ISDA, takes the cross-entropy of each sample from another
criterion, such as ISDA's bound.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.covariance.base import outside_autocast
from isda.criterion import in_float32
from isda.lab.choices import check_number
from isda.lab.distributed import all_reduce_sum


def own_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) the logit of each sample's label."""
    return logits.gather(1, targets.unsqueeze(1)).squeeze(1)


class SampleLoss(nn.Module):
    """A loss that is made from the cross-entropy -log p_y of each sample.

    Args:
        cross_entropy: what gives (N,) cross-entropies of logits (N, C) and labels (N,); plain by default. With
            ``ISDALoss.attach(model, ..., reduction="none")`` they are ISDA's upper bounds of their expectation.
    """

    def __init__(self, cross_entropy: nn.Module | None = None) -> None:
        super().__init__()
        self.cross_entropy = cross_entropy

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(N,) cross-entropies, in at least float32."""
        if self.cross_entropy is None:
            return F.cross_entropy(in_float32(logits), targets, reduction="none")
        return in_float32(self.cross_entropy(logits, targets))


class LabelSmoothing(SampleLoss):
    """-sum_c q_c log p_c with q = (1 - smoothing) one-hot(y) + smoothing / C.

    In terms of the cross-entropy it is -log p_y + smoothing (z_y - mean_c z_c), and so it is for ISDA's bound of it.

    Example:
        >>> LabelSmoothing()(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
        tensor(1.3863)
    """

    def __init__(self, smoothing: float = 0.1, cross_entropy: nn.Module | None = None) -> None:
        super().__init__(cross_entropy)
        self.smoothing = check_number("smoothing", smoothing, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        plain = in_float32(logits)
        if self.cross_entropy is None:
            return F.cross_entropy(plain, targets, label_smoothing=self.smoothing)
        rows = self.rows(logits, targets)
        return (rows + self.smoothing * (own_logits(plain, targets) - plain.mean(1))).mean()


def disturb_labels(targets: Tensor, num_classes: int, rate: float) -> Tensor:
    """(N,) labels, each drawn anew: y with probability 1 - (C-1)/C rate, every other class with rate / C.

    That is: with probability ``rate`` a label is replaced by one drawn evenly from all classes, itself included.

    Example:
        >>> disturb_labels(torch.tensor([2, 0, 1]), num_classes=3, rate=0.0)
        tensor([2, 0, 1])
    """
    replaced = torch.rand(targets.shape, device=targets.device) < rate
    others = torch.randint(num_classes, targets.shape, device=targets.device, dtype=targets.dtype)
    return torch.where(replaced, others, targets)


class DisturbLabel(SampleLoss):
    """Cross-entropy with labels drawn anew in each training step (Xie et al., 2016); plain in eval mode.

    On top of ISDA a sample keeps the covariance of its true class and the bound's own pivot; what is disturbed is the
    label that the loss aims at: bound + z_y - z_y' with the drawn label y'.
    """

    def __init__(self, rate: float = 0.05, cross_entropy: nn.Module | None = None) -> None:
        super().__init__(cross_entropy)
        self.rate = check_number("rate", rate, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss; the draws are torch's next ones on the device of the targets."""
        aims = disturb_labels(targets, logits.shape[1], self.rate) if self.training else targets
        plain = in_float32(logits)
        if self.cross_entropy is None:
            return F.cross_entropy(plain, aims)
        return (self.rows(logits, targets) + own_logits(plain, targets) - own_logits(plain, aims)).mean()


class FocalLoss(SampleLoss):
    """-alpha (1 - p_y)^gamma log p_y (Lin et al., 2017); the ISDA paper chooses alpha = 0.5 and gamma = 1."""

    def __init__(self, alpha: float = 0.5, gamma: float = 1.0, cross_entropy: nn.Module | None = None) -> None:
        super().__init__(cross_entropy)
        self.alpha, self.gamma = check_number("alpha", alpha), check_number("gamma", gamma)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss, with p_y = exp(-cross-entropy)."""
        rows = self.rows(logits, targets)
        # Away from 0, where the derivative of a power below 1 is infinite.
        missed = (-torch.expm1(-rows)).clamp_min(torch.finfo(rows.dtype).tiny)
        return (self.alpha * missed**self.gamma * rows).mean()


class LqLoss(SampleLoss):
    """(1 - p_y^q) / q (Zhang and Sabuncu, 2018); q -> 0 is cross-entropy. The ISDA paper chooses q = 0.4.

    Example:
        >>> LqLoss(q=1.0)(torch.zeros(2, 4), torch.tensor([0, 3]))  # 1 - 1/4
        tensor(0.7500)
    """

    def __init__(self, q: float = 0.4, cross_entropy: nn.Module | None = None) -> None:
        super().__init__(cross_entropy)
        self.q = check_number("q", q, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        rows = self.rows(logits, targets)
        if self.q == 0:
            return rows.mean()
        exponent = -self.q * rows
        # The derivative p^q is 1 + expm1 in torch, which is no number to speak of for a tiny p; exp has it exactly.
        return (torch.where(exponent > -1, -torch.expm1(exponent), 1 - torch.exp(exponent)) / self.q).mean()


class CenterLoss(SampleLoss):
    """-log p_y + weight/2 |x - c_y|^2 (Wen et al., 2016); in training mode the centres then follow the features.

    c <- c + rate sum_i [y_i = c] (x_i - c) / (1 + n_c). The centres start at 0, follow the features of all processes
    together, and are no parameters.

    Example:
        >>> criterion = CenterLoss(num_classes=2, feature_dim=1, weight=1.0)
        >>> targets, features = torch.tensor([0, 0]), torch.tensor([[2.0], [4.0]])
        >>> criterion(torch.zeros(2, 2), targets, features=features)  # log 2 + (4 + 16) / 4
        tensor(5.6931)
        >>> criterion.centres
        tensor([[1.],
                [0.]])
    """

    centres: Tensor

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        weight: float = 0.003,
        rate: float = 0.5,
        cross_entropy: nn.Module | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(cross_entropy)
        self.weight = check_number("weight", weight)
        self.rate: float | Tensor = check_number("rate", rate, high=1.0)
        dtype = torch.promote_types(dtype, torch.float32)
        self.register_buffer("centres", torch.zeros(num_classes, feature_dim, device=device, dtype=dtype))

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor) -> Tensor:
        """The mean loss, with the centres as they were; in training mode they then take their step."""
        rows = self.rows(logits, targets)
        with outside_autocast(logits.device):
            distances = (in_float32(features) - self.centres[targets]).square().sum(1)
            loss = (rows + self.weight / 2 * distances).mean()
            if self.training:
                self._follow(features.detach(), targets)
        return loss

    @torch.no_grad()
    def _follow(self, features: Tensor, targets: Tensor) -> None:
        features = features.to(self.centres.dtype)
        counted = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        totals = all_reduce_sum(counted.new_zeros(len(self.centres), counted.shape[1]).index_add_(0, targets, counted))
        sums, counts = totals[:, :-1], totals[:, -1:]
        self.centres.add_(self.rate * ((sums - counts * self.centres) / (1 + counts)))


def margin_function(cosine: Tensor, margin: int) -> Tensor:
    """psi(theta) = (-1)^k cos(m theta) - 2k for theta in [k pi / m, (k + 1) pi / m], of cos(theta).

    cos(m theta) is Chebyshev's polynomial T_m(cos theta): T_0 = 1, T_1 = c, T_n = 2 c T_(n-1) - T_(n-2).

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


class LargeMarginLoss(nn.Module):
    """Large-margin softmax (Liu et al., 2016): the own logit has psi(theta) in place of cos(theta); plain in eval mode.

    z_y + |w_y| |x| (psi(theta) - cos theta) / (1 + lambda), where a bias is part of z_y and stays outside the angle.
    lambda = max(lambda_min, base (1 + gamma t)^(-power)) at training step t = 1, 2, ... lets the margin in slowly. The
    defaults are those of the authors' code for CIFAR-10, where they make 30,000 steps; gamma belongs to that length.
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
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if margin not in range(1, 11):
            raise ValueError(f"margin must be an integer from 1 to 10, got {margin!r}")
        self.margin = margin
        self.base, self.gamma = check_number("base", base), check_number("gamma", gamma)
        self.power, self.lambda_min = check_number("power", power), check_number("lambda_min", lambda_min)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def annealing(self) -> Tensor:
        """The lambda of the last training step."""
        falling = self.base * (1 + self.gamma * self.step.to(torch.float32)) ** -self.power
        return falling.clamp_min(self.lambda_min)

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor, weight: Tensor) -> Tensor:
        """The mean loss; in training mode it also counts the step."""
        logits = in_float32(logits)
        if self.training:
            self.step.add_(1)
            with outside_autocast(logits.device):
                logits = self.with_margin(logits, targets, in_float32(features), in_float32(weight))
        return F.cross_entropy(logits, targets)

    def with_margin(self, logits: Tensor, targets: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        """(N, C) logits whose own-class entries have the margin."""
        own = weight.index_select(0, targets)
        lengths = torch.linalg.vector_norm(own, dim=1) * torch.linalg.vector_norm(features, dim=1)
        # Below it there is no angle to speak of; the quotient stays harmless.
        cosine = (own * features).sum(1) / lengths.clamp_min(torch.finfo(lengths.dtype).eps)
        change = lengths * (margin_function(cosine, self.margin) - cosine) / (1 + self.annealing)
        is_own = targets.unsqueeze(1) == torch.arange(logits.shape[1], device=logits.device)
        return logits + is_own * change.unsqueeze(1)


_LOW = -20.0


def log_softplus(values: Tensor) -> Tensor:
    """log(log(1 + e^s)), which is s where e^s is too small to be seen beside 1.

    Example:
        >>> log_softplus(torch.tensor([-200.0, -100.0]))
        tensor([-200., -100.])
    """
    return F.softplus(values.clamp_min(_LOW)).log() + (values - _LOW).clamp_max(0)


class DistributionNet(nn.Module):
    """(-log p_y(x) + s E[-log p_y(x + sigma(x) e)]) / (1 + s) + u max(0, margin - mean entropy), e ~ N(0, I).

    Yu et al. (2019). sigma(x) = softplus(V x + v) for each feature, V and v trained with the network. Cross-entropy
    alone would shrink sigma; the last term asks the entropies of a batch's Gaussians, per feature and on average, to
    stay above a margin. Eval mode is cross-entropy. The division by 1 + s is ours; the other numbers are those of the
    authors' code. Theirs reads sigma from the last feature maps; here it is read from the features.

    Args:
        feature_dim: A.
        sample_weight: s, weight of the drawn features beside the mean.
        samples: M draws for each sample and step.
        uncertainty_weight: u.
        deviation: the margin as the sigma whose entropy it is: log(deviation) + (1 + log 2 pi) / 2 for each feature.
        device: where the parameters live.
        dtype: their type, at least float32.
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        sample_weight: float = 0.1,
        samples: int = 1,
        uncertainty_weight: float = 0.001,
        deviation: float = 5.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if samples not in range(1, 101):
            raise ValueError(f"samples must be an integer from 1 to 100, got {samples!r}")
        if not 0 < deviation < math.inf:
            raise ValueError(f"deviation must be a finite number > 0, got {deviation!r}")
        self.samples, self.margin = samples, math.log(deviation) + 0.5 * (1 + math.log(2 * math.pi))
        self.sample_weight = check_number("sample_weight", sample_weight)
        self.uncertainty_weight = check_number("uncertainty_weight", uncertainty_weight)
        dtype = torch.promote_types(dtype, torch.float32)
        self.head = nn.Linear(feature_dim, feature_dim, device=device, dtype=dtype)
        nn.init.zeros_(self.head.bias)

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor, weight: Tensor) -> Tensor:
        """The mean loss; the draws are torch's next ones on the device of the features."""
        logits = in_float32(logits)
        if not self.training:
            return F.cross_entropy(logits, targets)
        rows = F.cross_entropy(logits, targets, reduction="none")
        with outside_autocast(logits.device):
            widths = self.head(features.to(self.head.weight.dtype))
            if self.sample_weight:
                noise = torch.randn(len(rows), self.samples, widths.shape[1], dtype=widths.dtype, device=widths.device)
                drawn = logits.unsqueeze(1) + (F.softplus(widths).unsqueeze(1) * noise) @ in_float32(weight).t()
                aims = targets.unsqueeze(1).expand(drawn.shape[:2])
                losses = F.cross_entropy(drawn.flatten(0, 1), aims.flatten(), reduction="none").view(aims.shape)
                rows = (rows + self.sample_weight * losses.mean(1)) / (1 + self.sample_weight)
            if self.uncertainty_weight:
                rows = rows + self.uncertainty_weight * self._uncertainty(widths)
        return rows.mean()

    def _uncertainty(self, widths: Tensor) -> Tensor:
        """The hinge of all processes' samples: this process's part of it, a mean over its own ones.

        Whether the entropy is too small is decided over all; the parts, weighed by samples, then add up to the hinge.
        """
        entropy = 0.5 * (2 * log_softplus(widths) + 1 + math.log(2 * math.pi)).sum(1) / widths.shape[1]
        total, count = all_reduce_sum(torch.stack([entropy.detach(), torch.ones_like(entropy)]).sum(1)).unbind()
        return (total < self.margin * count) * (self.margin - entropy.mean())
