"""Center loss (Wen et al., ECCV 2016): features are drawn towards a centre of their class, which follows them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda import checks
from isda.autocast import outside_autocast
from isda.distributed import add_up
from isda.losses.rivals.rows import SampleLoss, check_features, check_number, check_rows, reduced, wide

__all__ = ["CenterLoss", "centre_steps"]


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
        weight: of the squared distances; Wen et al. take 0.003, the ISDA paper does not say.
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
        self.weight = check_number("weight", weight)
        self.rate: float | Tensor = check_number("rate", rate, high=1.0)
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
            distances = (wide(features) - self.centres[targets]).square().sum(1)
            loss = reduced(rows + self.weight / 2 * distances, self.reduction)
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
        totals = add_up(counted.new_zeros(len(self.centres), counted.shape[1]).index_add_(0, targets, counted))
        self.centres.add_(self.rate * centre_steps(self.centres, totals[:, :-1], totals[:, -1]))

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"weight={self.weight:g}, centres {checks.shape_of(self.centres)}"
