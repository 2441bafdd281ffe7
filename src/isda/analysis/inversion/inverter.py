"""The reverse mapping of the paper's appendix (eqs. 20 and 21): objective, batched gradient descent, both steps.

z-hat does not change with the length of z, so gradients are orthogonal to z and every step makes z longer. A rate
that is too large does not diverge: z becomes so long that later steps hardly turn it. Hence the default rate of each
image is scaled by its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from isda._utils.devices import send
from isda._utils.errors import expect_type
from isda._utils.seeds import generator
from isda.analysis.inversion.encoder import Encoder, encoder_of_run
from isda.analysis.inversion.generator_adapters import LatentGenerator
from isda.analysis.training_features import Observed
from isda.networks.generative import to_pixels


class InversionErrors(NamedTuple):
    """Of each image by itself."""

    feature: Tensor
    """(N,) ||f(G(z-hat)) - a||^2"""
    objective: Tensor
    """(N,) what is minimised: the same, with eta ||G(z-hat) - x||^2 in step I."""


@dataclass(frozen=True)
class InversionObjective:
    """||f(G(z-hat)) - a||^2 + eta ||G(z-hat) - x||^2 of N images.

    Args:
        generator: G.
        sight: f, and the pixels that it takes; images are compared in these.
        labels: (N,) classes, on the CPU.
        features: (N, A) a, of the type and on the device of what f gives.
        pixels: (N, C, H, W) x as the network takes it; None leaves the second term out, as step II does.
        pixel_weight: eta.
    """

    generator: LatentGenerator
    sight: Encoder
    labels: Tensor
    features: Tensor
    pixels: Tensor | None = None
    pixel_weight: float = 0.0

    def errors(self, latent: Tensor) -> InversionErrors:
        """Of latent vectors (N, Z); an image's errors depend on no other image."""
        seen = self.sight.normalise(self.generator(latent, self.labels))
        feature = (self.sight.features(seen) - self.features).square().sum(1)
        if self.pixels is None:
            return InversionErrors(feature, feature)
        return InversionErrors(feature, feature + self.pixel_weight * (seen - self.pixels).square().flatten(1).sum(1))

    def of(self, rows: Tensor) -> InversionObjective:
        """That of some of the images, (K,) positions on the CPU."""
        there = send(rows, self.features.device)
        pixels = None if self.pixels is None else self.pixels[there]
        return replace(self, labels=self.labels[rows], features=self.features[there], pixels=pixels)


# Gradient descent on latent vectors, all images at once, each as if it were alone; the best seen is kept.
#
# z-hat does not change with the length of z, so gradients are orthogonal to z and every step makes z longer: a rate
# that is too large does not diverge, its first steps make z so long that the next ones turn it too little. Hence our
# rate, which is measured by the errors of each image.

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

    def see(self, errors: InversionErrors, iteration: int, settings: Descent) -> None:
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
    objective: InversionObjective, start: Tensor, settings: Descent, progress: Callable[[int], None] | None = None
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


def _differentiated(objective: InversionObjective, latent: Tensor) -> tuple[InversionErrors, Tensor]:
    """Errors, and the gradient of each image's objective: that of the sum, since none depends on another image."""
    with torch.enable_grad():
        latent = latent.detach().requires_grad_()
        errors = objective.errors(latent)
        (gradient,) = torch.autograd.grad(errors.objective.sum(), latent)
    return InversionErrors(errors.feature.detach(), errors.objective.detach()), gradient


def _keep(result: Minimum, state: _State, rows: Tensor) -> None:
    there = send(rows, result.latent.device)
    result.latent[there] = state.best
    for name in ("feature", "objective", "iterations"):
        getattr(result, name)[there] = getattr(state, name)


PIXEL_WEIGHT = 5e-3
"""eta: not in the paper, this much in the authors' script for ImageNet."""

DEFAULT_DESCENT = Descent()
AT_ONCE = 128
# Apart from the seeds of moves and of runs.
_STARTS = 0x73746172


def check_pixel_weight(weight: float) -> None:
    """A ValueError for what is no eta."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"pixel_weight must be at least 0 and finite, got {weight}")


@dataclass(frozen=True)
class InvertedFeatures:
    """Images whose features are near those that were asked for; everything on the CPU."""

    labels: Tensor
    """(N,) their classes."""
    asked: Tensor
    """(N, A) float64, a."""
    latent: Tensor
    """(N, Z), z."""
    images: Tensor
    """(N, C, H, W) uint8, G(z-hat)."""
    features: Tensor
    """(N, A) float64, f(G(z-hat))."""
    predicted: Tensor
    """(N,) the classes that the run's classifier sees."""
    start: Tensor
    """(N,) feature error before the step."""
    error: Tensor
    """(N,) feature error ||f(G(z-hat)) - a||^2 after it."""
    iterations: Tensor
    """(N,) how many it took to come there."""


@dataclass(frozen=True)
class Inverter:
    """Finds images of a generator for features of a run's network.

    Args:
        observed: the run.
        generator: of images of its classes, of the size that its network takes; all is computed on its device.
        pixel_weight: eta of step I.
        first: how step I is solved.
        second: how step II is solved.
        seed: of the latent vectors that step I starts from; that of an image follows from it and the image.
    """

    observed: Observed
    generator: LatentGenerator
    pixel_weight: float = PIXEL_WEIGHT
    first: Descent = DEFAULT_DESCENT
    second: Descent = DEFAULT_DESCENT
    seed: int = 0
    sight: Encoder = field(init=False)

    def __post_init__(self) -> None:
        check_pixel_weight(self.pixel_weight)
        object.__setattr__(self, "sight", encoder_of_run(self.observed, self.generator.device))

    def reconstruct(self, rows: Tensor, progress: Callable[[int], None] | None = None) -> InvertedFeatures:
        """Step I (eq. 20) for rows (N,) of ``observed.features``: z whose image looks like theirs to f and in pixels.

        Args:
            rows: the images.
            progress: told how many iterations are over; ``batches`` says how often it starts again.
        """
        labels, asked = self.observed.labels[rows], self.observed.features[rows]
        images = expect_type(self.observed.images(rows), Tensor)  # `encoder_of_run` has refused images of several sizes
        chances = (generator(self.seed, _STARTS, index) for index in self.observed.indices[rows].tolist())
        start = torch.cat([self.generator.draw(1, chance) for chance in chances])
        parts = [
            descend(self._objective(labels[part], asked[part], images[part]), start[part], self.first, progress)
            for part in self.batches(len(rows))
        ]
        return self._found(labels, asked, parts)

    def reach(
        self, found: InvertedFeatures, features: Tensor, progress: Callable[[int], None] | None = None
    ) -> InvertedFeatures:
        """Step II (eq. 21): from the z of what was found to images with other features.

        Args:
            found: what step I gave for N images, or step II for other features.
            features: (N, A), or (N, K, A) for K results of each image, one image's after another's.
            progress: as in ``reconstruct``.
        """
        if features.shape[0] != len(found.labels) or features.shape[-1] != found.asked.shape[1]:
            raise ValueError(
                f"features must be {len(found.labels)} rows of {found.asked.shape[1]}, or several for each, "
                f"got {tuple(features.shape)}"
            )
        each = features.shape[1] if features.ndim == 3 else 1
        labels, start = found.labels.repeat_interleave(each), found.latent.repeat_interleave(each, 0)
        asked = features.reshape(-1, features.shape[-1]).double()
        there = send(start, self.generator.device)
        parts = [
            descend(self._objective(labels[part], asked[part]), there[part], self.second, progress)
            for part in self.batches(len(labels))
        ]
        return self._found(labels, asked, parts)

    @staticmethod
    def batches(count: int) -> Iterator[slice]:
        """The parts of so many images that are worked on at once."""
        return (slice(first, first + AT_ONCE) for first in range(0, count, AT_ONCE))

    def _objective(self, labels: Tensor, asked: Tensor, images: Tensor | None = None) -> InversionObjective:
        dtype = self.observed.trained.config.dtype
        pixels = None if images is None else self.sight.normalise(send(images, self.generator.device))
        return InversionObjective(
            self.generator, self.sight, labels, send(asked, self.generator.device, dtype), pixels, self.pixel_weight
        )

    @torch.no_grad()
    def _found(self, labels: Tensor, asked: Tensor, parts: list[Minimum]) -> InvertedFeatures:
        made = [
            self.generator(one.latent, labels[part]) for one, part in zip(parts, self.batches(len(labels)), strict=True)
        ]
        features = torch.cat([self.sight.features(self.sight.normalise(one)).double().cpu() for one in made])
        return InvertedFeatures(
            labels,
            asked,
            torch.cat([one.latent for one in parts]).cpu(),
            torch.cat([to_pixels(one * 2 - 1).cpu() for one in made]),
            features,
            self.observed.logits(features).argmax(1),
            *(torch.cat([getattr(one, name) for one in parts]).cpu() for name in ("start", "feature", "iterations")),
        )
