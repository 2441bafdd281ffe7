"""Which anchors and proposals of an image are learnt from: drawn by a key of the image's own.

torchvision draws them from the global generator, for all images of a batch in turn: what is drawn for an image would
then depend on which images share its process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler

from isda.seeds import generator

__all__ = ["KeyedSampler", "given_targets", "keys_of"]


def keys_of(targets: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
    """The key of each image, where its target has one."""
    return [target["key"] for target in targets] if targets and all("key" in target for target in targets) else None


def given_targets(targets: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The targets, without which there is no loss."""
    if targets is None:
        raise ValueError("targets must be given in training, got None")
    return targets


class KeyedSampler(BalancedPositiveNegativeSampler):
    """So many of each image, at most a fraction of them positive.

    Args:
        batch_size_per_image: how many.
        positive_fraction: of them, at most.
        purpose: tells the samplers of one network apart.

    Example:
        >>> sampler = KeyedSampler(4, 0.5, purpose=1)
        >>> sampler.keys = [7, 7]
        >>> one, two = sampler([torch.tensor([1, 0, 0, 0, 1, 1, -1])] * 2)[0]
        >>> int(one.sum()), torch.equal(one, two)
        (2, True)
    """

    def __init__(self, batch_size_per_image: int, positive_fraction: float, purpose: int) -> None:
        super().__init__(batch_size_per_image, positive_fraction)
        self.purpose = purpose
        self.keys: list[int] | None = None
        """Of the images of the next call; the global generator draws without them."""

    def __call__(self, matched_idxs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of the positive and of the negative elements that were drawn; -1 is neither, 0 negative."""
        if self.keys is None:
            drawn: tuple[list[Tensor], list[Tensor]] = super().__call__(matched_idxs)
            return drawn
        positives, negatives = [], []
        for labels, key in zip(matched_idxs, self.keys, strict=True):
            positive = self._draw(labels >= 1, int(self.batch_size_per_image * self.positive_fraction), key, 0)
            left = self.batch_size_per_image - int(positive.sum())
            positives.append(positive)
            negatives.append(self._draw(labels == 0, left, key, 1))
        return positives, negatives

    def _draw(self, candidates: Tensor, count: int, key: int, kind: int) -> Tensor:
        """A mask of at most ``count`` of the candidates."""
        indices = candidates.nonzero().flatten()
        order = torch.randperm(len(indices), generator=generator(key, self.purpose, kind), device="cpu")[:count]
        mask = torch.zeros_like(candidates, dtype=torch.uint8)
        mask[indices[order.to(indices.device)]] = 1
        return mask
