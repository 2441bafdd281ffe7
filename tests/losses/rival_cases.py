"""The rival losses with inputs for them, and their formulas written naively: loops over samples and classes, float64.

Nothing in the formulas calls isda.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from loss_oracles import normal
from torch import Tensor, nn

from isda.losses import (
    CenterLoss,
    ConfidencePenalty,
    DistributionNet,
    DisturbLabel,
    FocalLoss,
    LabelSmoothing,
    LargeMarginLoss,
    LqLoss,
)

ROWS, CLASSES, DIM = 6, 4, 3


class Case(NamedTuple):
    """A loss, what it is called with beside logits and targets, and its formula for one sample."""

    make: Callable[..., nn.Module]
    inputs: tuple[str, ...]
    formula: Callable[..., Tensor]


def probabilities(z: Tensor) -> list[Tensor]:
    """The softmax of one row."""
    total = sum(torch.exp(value) for value in z)
    return [torch.exp(value) / total for value in z]


def cross_entropy(z, y):
    return -torch.log(probabilities(z)[y])


def focal(z, y, **_):
    p = probabilities(z)[y]
    return -0.3 * (1 - p) ** 1.7 * torch.log(p)


def lq(z, y, **_):
    return (1 - probabilities(z)[y] ** 0.4) / 0.4


def label_smoothing(z, y, **_):
    p = probabilities(z)
    shares = [(1 - 0.2) * (c == y) + 0.2 / len(z) for c in range(len(z))]
    return -sum(share * torch.log(value) for share, value in zip(shares, p, strict=True))


def confidence_penalty(z, y, **_):
    p = probabilities(z)
    return -torch.log(p[y]) + 0.7 * sum(value * torch.log(value) for value in p)


def center(z, y, *, features, state, **_):
    return cross_entropy(z, y) + 0.6 / 2 * sum((features - state["centres"][y]) ** 2)


def large_margin(z, y, *, features, weight, margin=3, annealing=2.0, **_):
    """f_y = (lambda |w||x| cos + |w||x| psi) / (1 + lambda) with psi from the angle itself; plus the bias."""
    own = weight[y]
    lengths = torch.sqrt(sum(own**2)) * torch.sqrt(sum(features**2))
    cosine = sum(own * features) / lengths
    angle = torch.acos(cosine)
    k = math.floor(float(angle.detach()) * margin / math.pi)
    psi = (-1) ** k * torch.cos(margin * angle) - 2 * k
    bias = z[y] - sum(own * features)
    changed = (annealing * lengths * cosine + lengths * psi) / (1 + annealing) + bias
    others = [changed if c == y else z[c] for c in range(len(z))]
    return cross_entropy(torch.stack(others), y)


def distribution_net(z, y, *, features, weight, state, noise, everyone):
    """One sample's part; the uncertainty of the batch is added to each."""

    def deviations(x):
        return torch.log(1 + torch.exp(state["head.weight"] @ x + state["head.bias"]))

    drawn = [cross_entropy(z + weight @ (deviations(features) * e), y) for e in noise]
    entropies = [sum(0.5 * torch.log(2 * math.pi * math.e * deviations(x) ** 2)) / DIM for x in everyone]
    margin = 0.5 * math.log(2 * math.pi * math.e * 3.0**2)
    short = margin - sum(entropies) / len(entropies)
    return (cross_entropy(z, y) + 0.4 * sum(drawn) / len(drawn)) / 1.4 + 0.9 * max(short, 0 * short)


def double(kind: type, *args: Any, **settings: Any) -> Callable[..., nn.Module]:
    return lambda **further: kind(*args, **settings, **further)


CASES: dict[str, Case] = {
    "focal": Case(double(FocalLoss, 0.3, 1.7), (), focal),
    "lq": Case(double(LqLoss, 0.4), (), lq),
    "label-smoothing": Case(double(LabelSmoothing, 0.2), (), label_smoothing),
    "confidence-penalty": Case(double(ConfidencePenalty, 0.7), (), confidence_penalty),
    "center": Case(double(CenterLoss, CLASSES, DIM, 0.6, dtype=torch.float64), ("features",), center),
    # A base and a power of 0 leave lambda at its minimum.
    "large-margin": Case(double(LargeMarginLoss, 3, base=0.0, lambda_min=2.0), ("features", "weight"), large_margin),
    "distribution-net": Case(
        double(
            DistributionNet,
            DIM,
            sample_weight=0.4,
            samples=5,
            uncertainty_weight=0.9,
            deviation=3.0,
            dtype=torch.float64,
        ),
        ("features", "weight"),
        distribution_net,
    ),
}
"""All but DisturbLabel, whose loss is a draw."""

MAKERS: dict[str, Callable[..., nn.Module]] = {
    **{name: case.make for name, case in CASES.items()},
    "disturb-label": double(DisturbLabel, 0.5),
}


class Inputs(NamedTuple):
    """Logits of a classifier with a bias, and where they come from."""

    logits: Tensor
    targets: Tensor
    features: Tensor
    weight: Tensor

    def given(self, name: str) -> dict[str, Tensor]:
        """What the loss of a case takes beside logits and targets."""
        wanted = CASES[name].inputs if name in CASES else ()
        return {one: getattr(self, one) for one in wanted}


def make_inputs(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Inputs:
    """Six samples of four classes; every loss has gradients with respect to the features and the weight."""
    features = normal(ROWS, DIM, seed=1, dtype=dtype).requires_grad_()
    weight = (scale * normal(CLASSES, DIM, seed=2, dtype=dtype)).requires_grad_()
    bias = normal(CLASSES, seed=3, dtype=dtype)
    return Inputs(features @ weight.T + bias, torch.tensor([0, 3, 1, 1, 2, 0]), features, weight)
