"""One loss step (forward, backward, statistics) of each method at a given shape, as a function to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from dense import DenseISDA
from isda import ISDALoss

METHODS = ("cross-entropy", "jensen", "tilted", "dense")
STRENGTH = 0.5


@dataclass(frozen=True)
class Shape:
    """A classification batch: covariance model, batch size N, classes C, feature dimension A."""

    covariance: str
    n: int
    c: int
    a: int

    def __str__(self) -> str:
        return f"{self.covariance} N={self.n} C={self.c} A={self.a}"


def make_step(method: str, shape: Shape, seed: int = 0) -> Callable[[], None]:
    """A function that runs one step on fixed random data: logits from features, loss, gradients of the weights."""
    torch.manual_seed(seed)
    features = torch.randn(shape.n, shape.a)
    targets = torch.randint(shape.c, (shape.n,))
    weight = (torch.randn(shape.c, shape.a) / shape.a**0.5).requires_grad_()

    def run(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        loss(features @ weight.t()).backward()
        weight.grad = None

    if method == "cross-entropy":
        return lambda: run(lambda logits: F.cross_entropy(logits, targets))
    if method == "dense":
        dense = DenseISDA(shape.c, shape.a, shape.covariance)
        return lambda: run(lambda logits: dense.loss(logits, targets, features, weight, STRENGTH))
    criterion = ISDALoss(shape.c, shape.a, covariance=shape.covariance, bound=method)
    return lambda: run(lambda logits: criterion(logits, targets, features=features, weight=weight, strength=STRENGTH))
