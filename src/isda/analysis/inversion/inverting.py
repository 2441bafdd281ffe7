"""The reverse mapping of the paper's appendix, for a run and a generator: the two steps, batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isda.analysis.inversion.descent import Descent, Minimum, descend
from isda.analysis.inversion.generating import LatentGenerator
from isda.analysis.inversion.objective import Objective
from isda.analysis.inversion.seeing import Sight, sight_of
from isda.analysis.observing import Observed
from isda.devices import send
from isda.errors import of_type
from isda.networks.generative import to_pixels
from isda.seeds import generator

__all__ = ["PIXEL_WEIGHT", "Found", "Inverter", "check_pixel_weight"]

PIXEL_WEIGHT = 5e-3
"""eta: not in the paper, this much in the authors' script for ImageNet."""

DEFAULT = Descent()
AT_ONCE = 128
# Apart from the seeds of moves and of runs.
_STARTS = 0x73746172


def check_pixel_weight(weight: float) -> None:
    """A ValueError for what is no eta."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"pixel_weight must be at least 0 and finite, got {weight}")


@dataclass(frozen=True)
class Found:
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
    first: Descent = DEFAULT
    second: Descent = DEFAULT
    seed: int = 0
    sight: Sight = field(init=False)

    def __post_init__(self) -> None:
        check_pixel_weight(self.pixel_weight)
        object.__setattr__(self, "sight", sight_of(self.observed, self.generator.device))

    def reconstruct(self, rows: Tensor, progress: Callable[[int], None] | None = None) -> Found:
        """Step I (eq. 20) for rows (N,) of ``observed.features``: z whose image looks like theirs to f and in pixels.

        Args:
            rows: the images.
            progress: told how many iterations are over; ``batches`` says how often it starts again.
        """
        labels, asked = self.observed.labels[rows], self.observed.features[rows]
        images = of_type(self.observed.images(rows), Tensor)  # `sight_of` has refused images of several sizes
        chances = (generator(self.seed, _STARTS, index) for index in self.observed.indices[rows].tolist())
        start = torch.cat([self.generator.draw(1, chance) for chance in chances])
        parts = [
            descend(self._objective(labels[part], asked[part], images[part]), start[part], self.first, progress)
            for part in self.batches(len(rows))
        ]
        return self._found(labels, asked, parts)

    def reach(self, found: Found, features: Tensor, progress: Callable[[int], None] | None = None) -> Found:
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

    def _objective(self, labels: Tensor, asked: Tensor, images: Tensor | None = None) -> Objective:
        dtype = self.observed.trained.config.dtype
        pixels = None if images is None else self.sight.normalise(send(images, self.generator.device))
        return Objective(
            self.generator, self.sight, labels, send(asked, self.generator.device, dtype), pixels, self.pixel_weight
        )

    @torch.no_grad()
    def _found(self, labels: Tensor, asked: Tensor, parts: list[Minimum]) -> Found:
        made = [
            self.generator(one.latent, labels[part]) for one, part in zip(parts, self.batches(len(labels)), strict=True)
        ]
        features = torch.cat([self.sight.features(self.sight.normalise(one)).double().cpu() for one in made])
        return Found(
            labels,
            asked,
            torch.cat([one.latent for one in parts]).cpu(),
            torch.cat([to_pixels(one * 2 - 1).cpu() for one in made]),
            features,
            self.observed.logits(features).argmax(1),
            *(torch.cat([getattr(one, name) for one in parts]).cpu() for name in ("start", "feature", "iterations")),
        )
