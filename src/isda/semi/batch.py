"""The unlabelled half of a batch: several views of the same samples, as the networks take them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isda.checks import shape_of

__all__ = ["UnlabelledBatch", "add_noise"]


def add_noise(images: Tensor, standard_deviation: float) -> Tensor:
    """Images plus fresh Gaussian noise; the images themselves where the deviation is 0."""
    return images if standard_deviation == 0 else images + standard_deviation * torch.randn_like(images)


@dataclass(frozen=True)
class UnlabelledBatch:
    """Views of N unlabelled samples. Images may also be embeddings (N, D) for a network that takes those.

    In the original publications the samples are drawn from all training images, labelled ones included.
    """

    images: Tensor
    """(N, C, H, W), augmented (weakly, for FixMatch) and normalised: what the student sees."""
    second: Tensor | None = None
    """The same samples, augmented independently: for the Pi-model's second pass and the mean teacher."""
    strong: Tensor | None = None
    """The same samples, strongly augmented: for FixMatch."""
    indices: Tensor | None = None
    """(N,) positions in the training set: for temporal ensembling."""
    labelled_images: Tensor | None = None
    """(L, C, H, W) the labelled images of the step, where they share batch statistics: see `passed`."""

    def __post_init__(self) -> None:
        for name in ("second", "strong"):
            view = getattr(self, name)
            if view is not None and view.shape != self.images.shape:
                raise ValueError(f"{name} must have the shape of images {shape_of(self.images)}, got {shape_of(view)}")
        indices = self.indices
        if indices is not None and (indices.dtype != torch.int64 or indices.shape != self.images.shape[:1]):
            raise ValueError(
                f"indices must be int64 of shape ({len(self.images)},), got {indices.dtype} of {shape_of(indices)}"
            )

    def needed(self, name: str) -> Tensor:
        """A view that a method cannot do without."""
        view: Tensor | None = getattr(self, name)
        if view is None:
            raise ValueError(f"the unlabelled batch must have {name} for this method, got None")
        return view

    def passed(self, network: nn.Module, images: Tensor) -> Tensor:
        """The network's logits of a view, taken through together with the labelled images where there are any.

        In the publications of the Pi-model, mean teacher and FixMatch every pass has the whole batch, labelled images
        included: all of them see the same batch statistics, and what is evaluated was trained with them.
        """
        if self.labelled_images is None:
            return network(images)
        logits: Tensor = network(torch.cat([self.labelled_images, images]))
        return logits[len(self.labelled_images) :]

    def with_noise(self, standard_deviation: float) -> UnlabelledBatch:
        """A fresh draw of Gaussian noise on the first and on the second view."""
        if standard_deviation == 0:
            return self
        second = None if self.second is None else add_noise(self.second, standard_deviation)
        return replace(self, images=add_noise(self.images, standard_deviation), second=second)
