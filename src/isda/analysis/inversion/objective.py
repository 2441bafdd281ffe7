"""What is minimised for each image (the paper's eqs. 20 and 21), and how near its features are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from isda.analysis.inversion.generating import LatentGenerator
from isda.analysis.inversion.seeing import Sight
from isda.devices import send

__all__ = ["Errors", "Objective"]


class Errors(NamedTuple):
    """Of each image by itself."""

    feature: Tensor
    """(N,) ||f(G(z-hat)) - a||^2"""
    objective: Tensor
    """(N,) what is minimised: the same, with eta ||G(z-hat) - x||^2 in step I."""


@dataclass(frozen=True)
class Objective:
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
    sight: Sight
    labels: Tensor
    features: Tensor
    pixels: Tensor | None = None
    pixel_weight: float = 0.0

    def errors(self, latent: Tensor) -> Errors:
        """Of latent vectors (N, Z); an image's errors depend on no other image."""
        seen = self.sight.normalise(self.generator(latent, self.labels))
        feature = (self.sight.features(seen) - self.features).square().sum(1)
        if self.pixels is None:
            return Errors(feature, feature)
        return Errors(feature, feature + self.pixel_weight * (seen - self.pixels).square().flatten(1).sum(1))

    def of(self, rows: Tensor) -> Objective:
        """That of some of the images, (K,) positions on the CPU."""
        there = send(rows, self.features.device)
        pixels = None if self.pixels is None else self.pixels[there]
        return replace(self, labels=self.labels[rows], features=self.features[there], pixels=pixels)
