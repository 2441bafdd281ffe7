"""Reverse mapping of the paper's appendix (eqs. 20 and 21): objective, batched gradient descent, both steps.

z-hat does not change with the length of z, so gradients are orthogonal to z and every step makes z longer. A rate
that is too large does not diverge: z becomes so long that later steps hardly turn it. Hence the default rate of each
image is scaled by its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from isda.lab.analysis.inversion.encoder import Encoder, encoder_of_run
from isda.lab.choices import check_number
from isda.lab.devices import send
from isda.lab.networks.generative import to_pixels
from isda.lab.seeds import generator

if TYPE_CHECKING:
    from isda.lab.analysis.inversion.generator_adapters import LatentGenerator
    from isda.lab.analysis.training_features import Observed


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
        encoder: f, and the pixels that it takes; images are compared in these.
        labels: (N,) classes, on the CPU.
        features: (N, A) a, of the type and on the device of what f gives.
        pixels: (N, C, H, W) x as the network takes it; None leaves the second term out, as step II does.
        pixel_weight: eta.
    """

    generator: LatentGenerator
    encoder: Encoder
    labels: Tensor
    features: Tensor
    pixels: Tensor | None = None
    pixel_weight: float = 0.0

    def errors(self, latent: Tensor) -> InversionErrors:
        """Errors of latent vectors (N, Z); those of an image depend on no other image."""
        pixels = self.encoder.normalise(self.encoder.fit(self.generator(latent, self.labels)))
        feature = (self.encoder.features(pixels) - self.features).square().sum(1)
        if self.pixels is None:
            return InversionErrors(feature, feature)
        return InversionErrors(feature, feature + self.pixel_weight * (pixels - self.pixels).square().flatten(1).sum(1))

    def subset(self, rows: Tensor) -> InversionObjective:
        """The objective of some of the images, (K,) positions on the CPU."""
        on_device = send(rows, self.features.device)
        pixels = None if self.pixels is None else self.pixels[on_device]
        return replace(self, labels=self.labels[rows], features=self.features[on_device], pixels=pixels)


QUARTERS = 4
"""Number of learning rates, each a tenth of the previous one."""
PATIENCE, PROGRESS = 100, 0.01
"""An objective stalls if it has not fallen by the share PROGRESS in PATIENCE iterations."""
CHECK_EVERY = 25
"""Iterations between two checks of which images are done: a check synchronises with the accelerator."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Optimisation of one step: as in the paper, except for ``lr`` and early stopping."""

    lr: float | None = None
    """The learning rate, divided by 10 after every quarter of the iterations; the paper's are 10 in step I and 1 in
    step II. By default 1 over the feature error of each image at the start, which does not depend on the features'
    scale."""
    iterations: int = 10_000
    momentum: float = 0.9
    weight_decay: float = 1e-4
    tolerance: float = 0.01
    """Early stopping: an image is done when its feature error is at most this share of that at the start. Its rate is
    lowered early if its objective has not fallen by 1% in 100 iterations, and it is done if it stalls at the last rate.
    0 disables early stopping."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be from 0 to below 1, got {self.tolerance}")

    def quarter(self, iteration: int) -> int:
        """How often the schedule has lowered the rate before an iteration.

        Example:
            >>> [Descent().quarter(t) for t in (0, 2499, 2500, 9999)]
            [0, 0, 1, 3]
        """
        return min(QUARTERS - 1, QUARTERS * iteration // self.iterations)

    def rates(self, start: Tensor) -> Tensor:
        """(N,) the first rate of each image, from the feature errors (N,) at the start."""
        if self.lr is not None:
            return torch.full_like(start, self.lr)
        return torch.where(start > 0, 1 / start, 0.0)


@dataclass(frozen=True)
class Minimum:
    """The best iterate of each image."""

    latent: Tensor
    """(N, Z)"""
    start: Tensor
    """(N,) feature error at the start."""
    feature: Tensor
    """(N,) feature error."""
    objective: Tensor
    """(N,), never more than at the start."""
    iterations: Tensor
    """(N,) at which iteration."""


@dataclass
class _State:
    """State of the images that are not done; every field has a row for each of them."""

    latent: Tensor
    velocity: Tensor
    rate: Tensor
    best: Tensor
    start: Tensor
    feature: Tensor
    objective: Tensor
    iterations: Tensor
    falls: Tensor
    """How often the rate was lowered."""
    mark: Tensor
    """Objective at the last progress ..."""
    marked: Tensor
    """... and its iteration."""

    def take(self, rows: Tensor) -> _State:
        return _State(*(getattr(self, part.name)[rows] for part in fields(self)))

    def done(self, tolerance: float) -> Tensor:
        return (self.feature <= tolerance * self.start) | (self.falls >= QUARTERS)

    def keep_best(self, errors: InversionErrors, iteration: int, settings: Descent) -> None:
        """Keep the current latent vectors where they are the best so far, of images that are not done."""
        better = (errors.objective < self.objective) & ~self.done(settings.tolerance)
        self.best = torch.where(better[:, None], self.latent, self.best)
        self.feature = torch.where(better, errors.feature, self.feature)
        self.objective = torch.where(better, errors.objective, self.objective)
        self.iterations = torch.where(better, float(iteration), self.iterations)

    def lower_rates(self, iteration: int, settings: Descent) -> None:
        """By the schedule, and where an image stalls, which continues from its best."""
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
    """Minimise the objective of each image from latent vectors (N, Z)."""
    start = start.detach()
    with torch.no_grad():
        first = objective.errors(start)
    zero = torch.zeros_like(first.feature)
    rate = settings.rates(first.feature)
    state = _State(
        start, torch.zeros_like(start), rate, start, first.feature, *first, zero, zero, first.objective, zero
    )
    result = Minimum(start.clone(), *(part.clone() for part in (first.feature, *first, zero)))
    rows, report = torch.arange(len(start), device="cpu"), progress or (lambda iteration: None)
    for iteration in range(settings.iterations + 1):
        errors, gradient = _differentiated(objective, state.latent)
        state.keep_best(errors, iteration, settings)
        state.lower_rates(iteration, settings)
        state.step(gradient, settings)
        state.latent = objective.generator.bounded(state.latent)
        if iteration % CHECK_EVERY and iteration < settings.iterations:
            continue
        report(iteration)
        done = send(rows, start.device)
        result.latent[done] = state.best
        for name in ("feature", "objective", "iterations"):
            getattr(result, name)[done] = getattr(state, name)
        going = (~state.done(settings.tolerance)).cpu().nonzero().flatten()
        if not len(going):
            break
        if len(going) < len(rows):
            rows, objective, state = rows[going], objective.subset(going), state.take(send(going, start.device))
    report(settings.iterations)
    return result


def _differentiated(objective: InversionObjective, latent: Tensor) -> tuple[InversionErrors, Tensor]:
    """Errors, and the gradient of each image's objective: that of the sum, since none depends on another image."""
    with torch.enable_grad():
        latent = latent.detach().requires_grad_()
        errors = objective.errors(latent)
        (gradient,) = torch.autograd.grad(errors.objective.sum(), latent)
    return InversionErrors(errors.feature.detach(), errors.objective.detach()), gradient


PIXEL_WEIGHT = 5e-3
"""eta: not in the paper; the value of the authors' script for ImageNet."""

DEFAULT_DESCENT = Descent()
BATCH_SIZE = 128
# Distinct from the seeds of targets and of runs.
_STARTS = 0x73746172


@dataclass(frozen=True)
class InvertedFeatures:
    """Images whose features are near the target features; everything on the CPU."""

    labels: Tensor
    """(N,) their classes."""
    target: Tensor
    """(N, A) float64, a."""
    latent: Tensor
    """(N, Z), z."""
    images: Tensor
    """(N, C, H, W) uint8, G(z-hat), of the size that the network takes."""
    features: Tensor
    """(N, A) float64, f(G(z-hat))."""
    predicted: Tensor
    """(N,) classes that the run's classifier predicts."""
    start: Tensor
    """(N,) feature error before the step."""
    error: Tensor
    """(N,) feature error ||f(G(z-hat)) - a||^2 after it."""
    iterations: Tensor
    """(N,) iterations of the best iterate."""


@dataclass(frozen=True)
class Inverter:
    """Finds images of a generator for features of a run's network.

    Args:
        observed: the run.
        generator: of images of its classes, of the size of its images, or of any if it crops them; all is computed on
            its device.
        pixel_weight: eta of step I.
        first: optimisation of step I.
        second: optimisation of step II.
        seed: of the latent vectors that step I starts from; that of an image follows from it and the image.
    """

    observed: Observed
    generator: LatentGenerator
    pixel_weight: float = PIXEL_WEIGHT
    first: Descent = DEFAULT_DESCENT
    second: Descent = DEFAULT_DESCENT
    seed: int = 0
    encoder: Encoder = field(init=False)

    def __post_init__(self) -> None:
        check_number("pixel_weight", self.pixel_weight)
        object.__setattr__(self, "encoder", encoder_of_run(self.observed, self.generator.device))

    def reconstruct(self, rows: Tensor, progress: Callable[[int], None] | None = None) -> InvertedFeatures:
        """Step I (eq. 20) for rows (N,) of ``observed.features``: z whose image is near theirs in features and pixels.

        Args:
            rows: the images.
            progress: called with the number of iterations that are over, for each of ``batches`` from 0 on.
        """
        labels, target = self.observed.labels[rows], self.observed.features[rows]
        images = self.observed.network_images(rows)
        generators = (generator(self.seed, _STARTS, index) for index in self.observed.indices[rows].tolist())
        start = torch.cat([self.generator.draw(1, rng) for rng in generators])
        parts = [
            descend(self._objective(labels[part], target[part], images[part]), start[part], self.first, progress)
            for part in self.batches(len(rows))
        ]
        return self._result(labels, target, parts)

    def reach(
        self, found: InvertedFeatures, features: Tensor, progress: Callable[[int], None] | None = None
    ) -> InvertedFeatures:
        """Step II (eq. 21): from known latent vectors to images with other features.

        Args:
            found: the result of step I for N images, or of step II for other features.
            features: (N, A), or (N, K, A) for K results of each image, one image's after another's.
            progress: as in ``reconstruct``.
        """
        if features.shape[0] != len(found.labels) or features.shape[-1] != found.target.shape[1]:
            raise ValueError(
                f"features must be {len(found.labels)} rows of {found.target.shape[1]}, or several for each, "
                f"got {tuple(features.shape)}"
            )
        each = features.shape[1] if features.ndim == 3 else 1
        labels, start = found.labels.repeat_interleave(each), found.latent.repeat_interleave(each, 0)
        target = features.reshape(-1, features.shape[-1]).double()
        start = send(start, self.generator.device)
        parts = [
            descend(self._objective(labels[part], target[part]), start[part], self.second, progress)
            for part in self.batches(len(labels))
        ]
        return self._result(labels, target, parts)

    @staticmethod
    def batches(count: int) -> Iterator[slice]:
        """Slices of ``count`` images that are optimised together."""
        return (slice(first, first + BATCH_SIZE) for first in range(0, count, BATCH_SIZE))

    def _objective(self, labels: Tensor, target: Tensor, images: Tensor | None = None) -> InversionObjective:
        dtype = self.observed.trained.config.dtype
        pixels = None if images is None else self.encoder.normalise(send(images, self.generator.device))
        return InversionObjective(
            self.generator, self.encoder, labels, send(target, self.generator.device, dtype), pixels, self.pixel_weight
        )

    @torch.no_grad()
    def _result(self, labels: Tensor, target: Tensor, parts: list[Minimum]) -> InvertedFeatures:
        batches = zip(parts, self.batches(len(labels)), strict=True)
        images = [self.encoder.fit(self.generator(part.latent, labels[rows])) for part, rows in batches]
        features = torch.cat([self.encoder.features(self.encoder.normalise(batch)).double().cpu() for batch in images])
        return InvertedFeatures(
            labels,
            target,
            torch.cat([part.latent for part in parts]).cpu(),
            torch.cat([to_pixels(batch * 2 - 1).cpu() for batch in images]),
            features,
            self.observed.logits(features).argmax(1),
            *(torch.cat([getattr(part, name) for part in parts]).cpu() for name in ("start", "feature", "iterations")),
        )
