"""Temporal ensembling (Laine & Aila, 2017): predictions should agree with their own average over past epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isda import distributed
from isda.checks import label_error, shape_of
from isda.devices import on_host, send
from isda.semi.batch import UnlabelledBatch
from isda.semi.distance import mean_squared_error
from isda.semi.regulariser import Regulariser, Surroundings

__all__ = ["TemporalEnsembling", "TemporalEnsemblingOptions"]


@dataclass(frozen=True, kw_only=True)
class TemporalEnsemblingOptions:
    """What may follow ``temporal-ensembling:``."""

    alpha: float = 0.6
    """Share of the past."""


class TemporalEnsembling(Regulariser):
    """1 / (C |B|) sum_i ||p_i - z_i||^2 with z_i = Z_i / (1 - alpha^t), Z_i <- alpha Z_i + (1 - alpha) p_i per epoch.

    t counts the epochs in which sample i was seen, so that the bias correction is exact for every sample; where all
    are seen in every epoch it is the authors'. A sample that was not seen in an earlier epoch has no target yet and
    weight 0. Of a sample seen several times in an epoch the mean prediction counts.

    With several processes each step exchanges its predictions: every process holds the same ensemble at any time, and
    the checkpoint of one is that of all.

    Args:
        samples: size of the training set that indices refer to.
        num_classes: C.
        alpha: share of the past, 0.6 in all experiments of the publication.
        device: where the ensemble lives.
        dtype: its type.
    """

    name = "temporal-ensembling"
    Options = TemporalEnsemblingOptions

    ensemble: Tensor
    epochs: Tensor
    predictions: Tensor
    seen: Tensor

    def __init__(
        self,
        samples: int,
        num_classes: int,
        alpha: float = 0.6,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if samples < 1 or num_classes < 1:
            raise ValueError(f"samples and num_classes must be positive, got {samples!r} and {num_classes!r}")
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha!r}")
        self.alpha = float(alpha)
        self.register_buffer("ensemble", torch.zeros(samples, num_classes, device=device, dtype=dtype))
        self.register_buffer("epochs", torch.zeros(samples, device=device, dtype=torch.int64))
        # Sums and counts of the epoch that is under way.
        self.register_buffer("predictions", torch.zeros(samples, num_classes, device=device, dtype=dtype))
        self.register_buffer("seen", torch.zeros(samples, device=device, dtype=torch.int64))

    @classmethod
    def create(cls, surroundings: Surroundings, **options: Any) -> TemporalEnsembling:
        """An ensemble of all training samples."""
        placed: dict[str, Any] = {"device": surroundings.device, "dtype": surroundings.dtype}
        return cls(surroundings.samples, surroundings.num_classes, **placed, **options)

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; in training mode it also notes the predictions for the next epoch's targets."""
        indices = send(view.needed("indices"), self.ensemble.device)
        if logits.shape[1:] != self.ensemble.shape[1:]:
            raise ValueError(f"logits must be (N, {self.ensemble.shape[1]}), got {shape_of(logits)}")
        # Indices on a GPU are checked by the indexing itself, without making it wait.
        message = label_error(indices, len(self.ensemble), name="indices") if on_host(indices) else None
        if message:
            raise ValueError(message)
        target, known = self.targets(indices)
        if self.training:
            self._note(indices, torch.softmax(logits.detach(), 1))
        return (known * mean_squared_error(logits, target)).mean()

    def targets(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C) bias-corrected targets, and (N,) 1 where there is one, 0 for samples not seen in an earlier epoch."""
        epochs = self.epochs[indices]
        known = (epochs > 0).to(self.ensemble.dtype)
        correction = 1 - self.alpha ** epochs.clamp_min(1).to(self.ensemble.dtype)
        return self.ensemble[indices] / correction.unsqueeze(1), known

    @torch.no_grad()
    def after_epoch(self) -> None:
        """Fold the epoch's predictions into the ensemble."""
        seen = self.seen > 0
        mean = self.predictions / self.seen.clamp_min(1).unsqueeze(1)
        self.ensemble.copy_(torch.where(seen.unsqueeze(1), torch.lerp(mean, self.ensemble, self.alpha), self.ensemble))
        self.epochs.add_(seen)
        self.predictions.zero_()
        self.seen.zero_()

    def _note(self, indices: Tensor, predictions: Tensor) -> None:
        predictions = predictions.to(self.predictions)
        if distributed.world_size() > 1:
            sizes = [size for (size,) in distributed.exchange_counts([len(indices)], indices.device, None)]
            indices = distributed.gather_rows(indices, sizes, None)
            predictions = distributed.gather_rows(predictions, sizes, None)
        self.predictions.index_add_(0, indices, predictions)
        self.seen.index_add_(0, indices, torch.ones_like(indices))
