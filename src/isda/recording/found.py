"""What was recorded for some logits: features and a weight whose product they are, from one pass or side by side."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.autocast import outside_autocast
from isda.functional.patches import Patches
from isda.recording.following import Term
from isda.recording.layers import drops_features
from isda.recording.places import Place
from isda.recording.sentences import BY_HAND

__all__ = ["Found"]

_VERIFIED_ROWS, _TOLERANCE = 1024, 0.05


class Found:
    """Features a and weight W of logits z = W a + b.

    Of several classifiers whose outputs are added or averaged, z = s1 (W1 a1 + b1) + s2 (W2 a2 + b2), features and
    scaled weights stand side by side: a = [a1 | a2], W = [s1 W1 | s2 W2]. Of several passes of one classifier, the
    features are averaged.

    Args:
        terms: the passes that the logits are made of.
        classifiers: how many classifiers are recorded.
    """

    def __init__(self, terms: list[Term], classifiers: int = 1) -> None:
        self._by_head = [[term for term in terms if term.position == place] for place in range(classifiers)]
        missing = sum(not own for own in self._by_head)
        if missing:
            raise ValueError(
                f"the logits are made by {classifiers - missing} of the {classifiers} classifiers that were attached; "
                "pass the one whose output they are as classifier="
            )
        self._first = terms[0]

    @property
    def strength(self) -> float | None:
        """Lambda of the call that fed the statistics with this pass; None until then. A pass counts once."""
        return self._first.record.strengths.get(self._part)

    @strength.setter
    def strength(self, value: float) -> None:
        self._first.record.strengths[self._part] = value

    @property
    def joining(self) -> bool:
        """Whether the pass ran inside the join() of DistributedDataParallel."""
        return self._first.record.joining

    @property
    def weight(self) -> Tensor:
        """The weight W, (C, A) or that of a 1x1 convolution."""
        weights = [_times(own[0].record.weight, _scale(own)) for own in self._by_head]
        return weights[0] if len(weights) == 1 else torch.cat([weight.flatten(1) for weight in weights], 1)

    def rows_for(self, logits: Tensor) -> Tensor | Patches | None:
        """The features in the layout of the logits, (N, A) or (N, A, ...); None where there are none."""
        place = self._place
        if place is None:
            return None
        if place.axis != 1 and not self.has_classes_last(logits):
            raise ValueError(
                f"logits must have their classes in the second or the last dimension, got them in number {place.axis}"
            )
        if isinstance(place.features, Patches):
            return place.features
        return place.features.movedim(place.axis, 1)

    def has_classes_last(self, logits: Tensor) -> bool:
        """Whether the classes are the last dimension of logits with three or more, as they are of tokens."""
        return self._place is not None and logits.ndim > 2 and self._place.axis == logits.ndim - 1

    @torch.no_grad()
    def verify(self, logits: Tensor) -> bool:
        """Whether logits are known to be W a + b; raises where they are not. Reads the device.

        What it cannot tell: upsampled logits, sharded weights, dropout in adapters, and a classifier that starts at
        zero.
        """
        place = self._place
        if place is None or place.is_coarse or any(drops_features(own[0].record.head) for own in self._by_head):
            return False
        weight = self.weight
        if hasattr(weight, "full_tensor") or logits.shape[place.axis] != len(weight):
            return False  # a wrong shape is reported with all others
        dtype = torch.promote_types(logits.dtype, torch.float32)
        given = _rows(logits, place.axis)[:_VERIFIED_ROWS].to(dtype)
        rows = place.features[:_VERIFIED_ROWS].dense() if isinstance(place.features, Patches) else None
        rows = _rows(place.tensor, place.axis)[:_VERIFIED_ROWS] if rows is None else rows
        by_head = [(own[0].record.bias, _scale(own)) for own in self._by_head]
        biases = [_times(bias, scale) for bias, scale in by_head if bias is not None]
        with outside_autocast(logits.device):
            expected = F.linear(rows.to(dtype), weight.flatten(1).to(dtype))
            for bias in biases:
                expected = expected + bias.to(dtype)
        error, size = (float(t) for t in torch.stack([(given - expected).norm(), expected.norm()]))
        if error > _TOLERANCE * size:
            share = error / size if size else float("inf")
            heads = " + ".join(str(own[0].record.head) for own in self._by_head)
            raise ValueError(
                f"the logits are not W a + b of the classifier {heads}: they differ from it by {share:.0%}; "
                f"where they are scaled or reordered, call {BY_HAND} with features in the order of the logits and the "
                "weight times that scale"
            )
        return size > 0

    @property
    def _part(self) -> Hashable:
        """Which part of the pass the logits are."""
        return tuple(step.key for step in self._first.steps if step.key is not None)

    @cached_property
    def _place(self) -> Place | None:
        """The features, all classifiers side by side; None where the classifier was in eval mode."""
        if any(term.record.features is None for own in self._by_head for term in own):
            return None
        places = [_mean_place(own) for own in self._by_head]
        first = places[0]
        if len(places) == 1:
            return first
        if any(place[1:] != first[1:] for place in places):
            raise ValueError(f"classifiers that are added up must have their classes in one place; call {BY_HAND}")
        return first._replace(features=torch.cat([place.tensor for place in places], first.axis))


def _mean_place(terms: list[Term]) -> Place:
    """The features of one classifier: those of its pass, or the mean over several, weighted as their outputs were."""
    places = [_replayed(term) for term in terms]
    if len(places) == 1:
        return places[0]
    scales = [_product(term.factors) for term in terms]
    total = sum(scales[1:], scales[0])
    parts = [place.tensor * (scale / total) for place, scale in zip(places, scales, strict=True)]
    return places[0]._replace(features=sum(parts[1:], parts[0]))


def _replayed(term: Term) -> Place:
    place = Place(*term.record.laid_out(term.shape), term.shape)
    for step in term.steps:
        place = step(place)
    return place


def _scale(terms: list[Term]) -> float | Tensor:
    scales = [_product(term.factors) for term in terms]
    return sum(scales[1:], scales[0])


def _product(factors: tuple[float | Tensor, ...]) -> float | Tensor:
    product: float | Tensor = 1.0
    for factor in factors:
        product = product * factor
    return product


def _times(tensor: Tensor, scale: float | Tensor) -> Tensor:
    return tensor if isinstance(scale, float) and scale == 1 else tensor * scale


def _rows(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, -1).flatten(0, -2)
