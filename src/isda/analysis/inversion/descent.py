"""Gradient descent on latent vectors, all images at once, each as if it were alone; the best seen is kept.

z-hat does not change with the length of z, so gradients are orthogonal to z and every step makes z longer: a rate that
is too large does not diverge, its first steps make z so long that the next ones turn it too little. Hence our rate,
which is measured by the errors of each image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from isda.analysis.inversion.objective import Errors, Objective
from isda.devices import send

__all__ = ["Descent", "Minimum", "descend"]

QUARTERS = 4
"""The rate has so many values, each a tenth of the one before."""
PATIENCE, PROGRESS = 100, 0.01
"""An objective stalls that has not fallen by this share in so many iterations."""
LOOK_EVERY = 25
"""Iterations between two looks at which images are done: a look makes the host wait for an accelerator."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """How one step is solved: as in the paper, but for ``lr`` and the early stop."""

    lr: float | None = None
    """The learning rate, divided by 10 after every quarter of the iterations; the paper's are 10 in step I and 1 in
    step II. If left out, it is 1 over the feature error of each image at the start, so that it means the same for
    features of any size."""
    iterations: int = 10_000
    momentum: float = 0.9
    weight_decay: float = 1e-4
    tolerance: float = 0.01
    """Early stop: an image is done when its feature error is at most this share of that at the start. Its rate falls
    before its time when its objective has not fallen by 1% in 100 iterations, and it is done when it stalls at the last
    rate. 0 stops nothing early."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be from 0 to below 1, got {self.tolerance}")

    def quarter(self, iteration: int) -> int:
        """How often the rate has fallen before an iteration, from 0, unless it fell early.

        Example:
            >>> [Descent().quarter(t) for t in (0, 2499, 2500, 9999)]
            [0, 0, 1, 3]
        """
        return min(QUARTERS - 1, QUARTERS * iteration // self.iterations)

    def rates(self, start: Tensor) -> Tensor:
        """(N,) the first rate of each image, from the feature errors (N,) at the start."""
        if self.lr is not None:
            return torch.full_like(start, self.lr)
        # An image that has no error has nowhere to go.
        return torch.where(start > 0, 1 / start, 0.0)


@dataclass(frozen=True)
class Minimum:
    """The best that was seen of each image."""

    latent: Tensor
    """(N, Z)"""
    start: Tensor
    """(N,) feature error at the start."""
    feature: Tensor
    """(N,) feature error."""
    objective: Tensor
    """(N,), never more than at the start."""
    iterations: Tensor
    """(N,) after how many it was seen."""


@dataclass
class _State:
    """Where the images that are not done yet are; every field has a row for each of them."""

    latent: Tensor
    velocity: Tensor
    rate: Tensor
    best: Tensor
    start: Tensor
    feature: Tensor
    objective: Tensor
    iterations: Tensor
    falls: Tensor
    """How often the rate has fallen."""
    mark: Tensor
    """The objective that has to fall further ..."""
    marked: Tensor
    """... and the iteration it was reached in."""

    def take(self, rows: Tensor) -> _State:
        return _State(*(getattr(self, one.name)[rows] for one in fields(self)))

    def done(self, tolerance: float) -> Tensor:
        return (self.feature <= tolerance * self.start) | (self.falls >= QUARTERS)

    def see(self, errors: Errors, iteration: int, settings: Descent) -> None:
        """Remember what is better, of images that are not done."""
        better = (errors.objective < self.objective) & ~self.done(settings.tolerance)
        self.best = torch.where(better[:, None], self.latent, self.best)
        self.feature = torch.where(better, errors.feature, self.feature)
        self.objective = torch.where(better, errors.objective, self.objective)
        self.iterations = torch.where(better, float(iteration), self.iterations)

    def lower_rates(self, iteration: int, settings: Descent) -> None:
        """By the schedule, and where an image stalls, which goes on from its best."""
        self.falls = self.falls.clamp_min(settings.quarter(iteration))
        if not settings.tolerance:
            return
        moved = self.objective < (1 - PROGRESS) * self.mark
        self.mark = torch.where(moved, self.objective, self.mark)
        stalled = ~moved & (iteration - self.marked >= PATIENCE)
        self.marked = torch.where(moved | stalled, float(iteration), self.marked)
        self.falls = self.falls + stalled
        self.latent = torch.where(stalled[:, None], self.best, self.latent)
        self.velocity = self.velocity.masked_fill(stalled[:, None], 0.0)

    def step(self, gradient: Tensor, settings: Descent) -> None:
        self.velocity = settings.momentum * self.velocity + gradient + settings.weight_decay * self.latent
        self.latent = self.latent - (self.rate / 10**self.falls)[:, None] * self.velocity


def descend(
    objective: Objective, start: Tensor, settings: Descent, progress: Callable[[int], None] | None = None
) -> Minimum:
    """Minimise the objective of each image from latent vectors (N, Z).

    Args:
        objective: of N images.
        start: (N, Z), which stays as it is.
        settings: rates and when to stop.
        progress: told how many iterations are over, now and then.
    """
    start = start.detach()
    with torch.no_grad():
        first = objective.errors(start)
    zero = torch.zeros_like(first.feature)
    rate = settings.rates(first.feature)
    state = _State(
        start, torch.zeros_like(start), rate, start, first.feature, *first, zero, zero, first.objective, zero
    )
    result = Minimum(start.clone(), *(one.clone() for one in (first.feature, *first, zero)))
    rows, bar = torch.arange(len(start), device="cpu"), progress or (lambda over: None)
    for iteration in range(settings.iterations + 1):
        errors, gradient = _differentiated(objective, state.latent)
        state.see(errors, iteration, settings)
        state.lower_rates(iteration, settings)
        state.step(gradient, settings)
        state.latent = objective.generator.bounded(state.latent)
        if iteration % LOOK_EVERY and iteration < settings.iterations:
            continue
        bar(iteration)
        _keep(result, state, rows)
        going = (~state.done(settings.tolerance)).cpu().nonzero().flatten()
        if not len(going):
            break
        if len(going) < len(rows):
            rows, objective, state = rows[going], objective.of(going), state.take(send(going, start.device))
    bar(settings.iterations)
    return result


def _differentiated(objective: Objective, latent: Tensor) -> tuple[Errors, Tensor]:
    """Errors, and the gradient of each image's objective: that of the sum, since none depends on another image."""
    with torch.enable_grad():
        latent = latent.detach().requires_grad_()
        errors = objective.errors(latent)
        (gradient,) = torch.autograd.grad(errors.objective.sum(), latent)
    return Errors(errors.feature.detach(), errors.objective.detach()), gradient


def _keep(result: Minimum, state: _State, rows: Tensor) -> None:
    there = send(rows, result.latent.device)
    result.latent[there] = state.best
    for name in ("feature", "objective", "iterations"):
        getattr(result, name)[there] = getattr(state, name)
