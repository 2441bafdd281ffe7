"""Confidence penalty (Pereyra et al., ICLR workshop 2017): predictions of low entropy cost something."""

from __future__ import annotations

from torch import Tensor, nn

from isda.losses.rivals.rows import SampleLoss, check_number, check_rows, reduced, wide

__all__ = ["ConfidencePenalty", "prediction_entropy"]


def prediction_entropy(logits: Tensor) -> Tensor:
    """(N,) entropies H(p) = -sum_c p_c log p_c of the predictions p = softmax(logits), in nats.

    Example:
        >>> import torch
        >>> prediction_entropy(torch.zeros(1, 4))  # log 4
        tensor([1.3863])
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


class ConfidencePenalty(SampleLoss):
    """-log p_y - beta H(p); beta = 0 is cross-entropy.

    On top of ISDA the first term is its bound; the entropy stays that of the prediction before augmentation.

    Args:
        beta: weight of the entropy.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> import torch
        >>> ConfidencePenalty(beta=1.0)(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4 - log 4
        tensor(0.)
    """

    def __init__(self, beta: float = 0.1, *, reduction: str = "mean", cross_entropy: nn.Module | None = None) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.beta = check_number("beta", beta)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        rows = self.rows(logits, targets) - self.beta * prediction_entropy(wide(logits))
        return reduced(rows, self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"beta={self.beta:g}"
