"""Losses that also use features or weights: center loss (Wen et al., ECCV 2016), large-margin softmax (Liu et al.,
ICML 2016) and DistributionNet (Yu et al., ICCV 2019).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.choices import check_choice
from isda._utils.devices import outside_autocast
from isda._utils.distributed import all_reduce_sum
from isda.functional.sampling import diagonal_gaussian_entropy
from isda.lab.methods.logit_criteria import SampleLoss, check_features, check_rows
from isda.losses.targets import REDUCTIONS, reduce_losses, widen


def centre_steps(centres: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """(C, A) steps sum_i [y_i = c] (x_i - centre_c) / (1 + n_c), to be taken at the centres' rate.

    Args:
        centres: (C, A).
        sums: (C, A) sums of the features of each class.
        counts: (C,) how many they are, n_c.

    Example:
        >>> centre_steps(torch.zeros(2, 1), torch.tensor([[6.0], [0.0]]), torch.tensor([2.0, 0.0]))
        tensor([[2.],
                [0.]])
    """
    counts = counts.unsqueeze(1)
    return (sums - counts * centres) / (1 + counts)


class CenterLoss(SampleLoss):
    """-log p_y + weight/2 |x - c_y|^2, and in training mode then c <- c + rate * centre_steps.

    The centres start at 0, follow the features of all processes together, and are no parameters: no gradient reaches
    them. Rows that are not finite do not move them. In eval mode they stay where they are.

    Args:
        num_classes: C.
        feature_dim: A.
        weight: of the squared distances; Wen et al. take 0.003, the ISDA paper gives no value.
        rate: at which the centres follow. It can be set, also to a scalar tensor: the ISDA paper's 0.5 is an "initial"
            rate.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.
        device: where the centres live.
        dtype: their type, at least float32.

    Shape:
        logits (N, C), targets (N,), features (N, A); a scalar, or (N,) for reduction none.

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
        *,
        reduction: str = "mean",
        cross_entropy: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.weight = checks.check_number("weight", weight)
        self.rate: float | Tensor = checks.check_number("rate", rate, high=1.0)
        dtype = torch.promote_types(torch.float32 if dtype is None else dtype, torch.float32)
        self.register_buffer("centres", torch.zeros(num_classes, feature_dim, device=device, dtype=dtype))

    def forward(self, logits: Tensor, targets: Tensor, *, features: Tensor) -> Tensor:
        """The loss, with the centres as they were; in training mode they then take their step."""
        check_rows(logits, targets)
        check_features(logits, features, dim=self.centres.shape[1])
        if logits.shape[1] != len(self.centres):
            raise ValueError(f"logits must have shape (N, {len(self.centres)}), got {checks.shape_of(logits)}")
        rows, targets = self.rows(logits, targets), targets.long()
        with outside_autocast(logits.device):
            distances = (widen(features) - self.centres[targets]).square().sum(1)
            loss = reduce_losses(rows + self.weight / 2 * distances, self.reduction)
            if self.training:
                self._follow(features.detach(), targets)
        return loss

    @torch.no_grad()
    def _follow(self, features: Tensor, targets: Tensor) -> None:
        """Move the centres towards the features of this step, in all processes by the same."""
        features = features.to(self.centres.dtype)
        finite = checks.finite_rows(features).unsqueeze(1)
        features = torch.where(finite, features, 0)
        counted = torch.cat([features, finite.to(features.dtype)], 1)
        totals = all_reduce_sum(counted.new_zeros(len(self.centres), counted.shape[1]).index_add_(0, targets, counted))
        self.centres.add_(self.rate * centre_steps(self.centres, totals[:, :-1], totals[:, -1]))

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"weight={self.weight:g}, centres {checks.shape_of(self.centres)}"


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
        self.base, self.gamma = checks.check_number("base", base), checks.check_number("gamma", gamma)
        self.power, self.lambda_min = checks.check_number("power", power), checks.check_number("lambda_min", lambda_min)
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
        logits, targets = widen(logits), targets.long()
        if self.training:
            self.step.add_(1)
            with outside_autocast(logits.device):
                logits = large_margin_logits(
                    logits, targets, widen(features), widen(weight), self.margin, self.annealing
                )
        return F.cross_entropy(logits, targets, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"margin={self.margin}, base={self.base:g}, gamma={self.gamma:g}, power={self.power:g}"


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
        self.sample_weight = checks.check_number("sample_weight", sample_weight)
        self.uncertainty_weight = checks.check_number("uncertainty_weight", uncertainty_weight)
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
        logits, targets = widen(logits), targets.long()
        if not self.training:
            return F.cross_entropy(logits, targets, reduction=self.reduction)
        rows = F.cross_entropy(logits, targets, reduction="none")
        with outside_autocast(logits.device):
            widths = self.head(features.to(self.head.weight.dtype))
            if self.sample_weight:
                noise = torch.randn(len(rows), self.samples, widths.shape[1], dtype=widths.dtype, device=widths.device)
                drawn = sampled_cross_entropy(logits, targets, widen(weight), F.softplus(widths), noise)
                rows = (rows + self.sample_weight * drawn) / (1 + self.sample_weight)
            if self.uncertainty_weight:
                rows = rows + self.uncertainty_weight * self._uncertainty(widths)
        return reduce_losses(rows, self.reduction)

    def _uncertainty(self, widths: Tensor) -> Tensor:
        """`feature_uncertainty_loss` of all processes' samples: this process's part of it, a mean over its own ones.

        Whether the entropy is too small is decided over all; the parts, weighed by samples, then add up to the hinge.
        """
        entropy = diagonal_gaussian_entropy(2 * log_softplus(widths)) / widths.shape[1]
        total, count = all_reduce_sum(torch.stack([entropy.detach(), torch.ones_like(entropy)]).sum(1)).unbind()
        return (total < self.margin * count) * (self.margin - entropy.mean())

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"sample_weight={self.sample_weight:g}, uncertainty_weight={self.uncertainty_weight:g}"
