"""Reconstructed and augmented images of a run, their errors, and the nearest training images in pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda._utils.choices import check_choice
from isda._utils.errors import expect_type
from isda._utils.seeds import generator
from isda.analysis.inversion.inverter import InvertedFeatures, Inverter
from isda.analysis.inversion.targets import augmented_features
from isda.analysis.training_features import Observed
from isda.networks.generative import to_pixels

NEAREST = 5
"""As many as in the paper's Figure 14."""

# Bounds the floating-point copy of 8-bit images.
CHUNK = 2000


class Neighbours(NamedTuple):
    """Of N images, the nearest first."""

    positions: Tensor
    """(N, K) among those that were searched."""
    distances: Tensor
    """(N, K) root mean squared difference of pixels in [0, 1]."""


def nearest_images(images: Tensor, among: Tensor, count: int = NEAREST) -> Neighbours:
    """The nearest of many images, all uint8 (..., C, H, W), by the sum of squared differences of pixels.

    Example:
        >>> among = torch.tensor([[0], [100], [255]], dtype=torch.uint8).view(3, 1, 1, 1)
        >>> nearest_images(torch.full((1, 1, 1, 1), 230, dtype=torch.uint8), among, count=2).positions
        tensor([[2, 1]])
    """
    wanted = images.flatten(1).double() / 255
    # By differences: an image that is there must be at distance 0.
    exact = "donot_use_mm_for_euclid_dist"
    apart = [torch.cdist(wanted, part.flatten(1).double() / 255, compute_mode=exact) for part in among.split(CHUNK)]
    distances, positions = torch.cat(apart, 1).topk(min(count, len(among)), largest=False)
    return Neighbours(positions, distances / wanted.shape[1] ** 0.5)


# Apart from the seeds of starts, moves and runs.
_CHOICE, _RANDOM = 0x63686F69, 0x72616E64


@dataclass(frozen=True)
class InversionStudy:
    """N images, K augmented ones of each; everything on the CPU."""

    observed: Observed
    rows: Tensor
    """(N,) of ``observed.features``."""
    originals: Tensor
    """(N, C, H, W) uint8"""
    reconstructed: InvertedFeatures
    """Of N images."""
    augmented: InvertedFeatures
    """Of N * K, one image's after another's."""
    random: Tensor
    """(N, C, H, W) uint8 images of the same classes by the generator."""
    neighbours: Neighbours
    """Of the N * K augmented images, among all training images of the data set."""

    @property
    def each(self) -> int:
        """K."""
        return len(self.augmented.labels) // len(self.rows)

    @property
    def nearest_own(self) -> Tensor:
        """(N * K,) whether a result's features are nearer to where they were asked to be than to where the image's
        other moves lead, and than to those of the image itself.
        """
        asked = self.augmented.asked.unflatten(0, (len(self.rows), self.each))
        places = torch.cat([asked, self.reconstructed.asked[:, None]], 1)
        came = self.augmented.features.unflatten(0, (len(self.rows), self.each))
        return (torch.cdist(came, places).argmin(2) == torch.arange(self.each)).flatten()

    def record(self) -> dict[str, Any]:
        """Figures of all images together and of each, as plain values."""
        one, two = self.reconstructed, self.augmented
        classes = self.observed.classes
        asked = (two.asked - one.asked.repeat_interleave(self.each, 0)).square().sum(1)
        return {
            "images": len(self.rows),
            "augmented": self.each,
            "step_1": _step(one),
            "step_2": _step(two)
            | {"asked_move": float(asked.mean()), "nearest_to_own_target": float(self.nearest_own.double().mean())},
            "rows": [
                {
                    "training_image": int(self.observed.indices[row]),
                    "class": classes[int(self.reconstructed.labels[i])],
                    "step_1": _single(one, i, classes),
                    "step_2": [
                        _single(two, j, classes) | {"nearest_training_images": self.neighbours.positions[j].tolist()}
                        for j in range(i * self.each, (i + 1) * self.each)
                    ],
                }
                for i, row in enumerate(self.rows.tolist())
            ],
        }


def choose_rows(observed: Observed, count: int, classes: Sequence[str] = (), seed: int = 0) -> Tensor:
    """(count,) rows of ``observed.features``: images drawn from each class in turn, by the classes' order.

    Args:
        observed: the run.
        count: how many images.
        classes: only of these; of all if empty.
        seed: which images.
    """
    known = observed.classes
    labels = sorted({known.index(check_choice("classes", name, known)) for name in classes}) or range(len(known))
    drawn = []
    for label in labels:
        members = observed.rows_of(label)
        drawn.append(members[torch.randperm(len(members), generator=generator(seed, _CHOICE, label))].tolist())
    turns = [members[turn] for turn in range(max(map(len, drawn))) for members in drawn if turn < len(members)]
    if not 0 < count <= len(turns):
        raise ValueError(f"images must be from 1 to {len(turns)}, as many as these classes have, got {count}")
    chosen = torch.tensor(turns[:count])
    return chosen[observed.labels[chosen].argsort(stable=True)]


def study(
    inverter: Inverter,
    rows: Tensor,
    each: int,
    *,
    strength: float | None = None,
    progress: tuple[Callable[[int], None], Callable[[int], None]] | None = None,
) -> InversionStudy:
    """Reconstruct images, move their features as ISDA does, and find images for where they land.

    Args:
        inverter: for a run and a generator; its seed is that of everything drawn.
        rows: (N,) of the run's features.
        each: augmented images of each.
        strength: lambda of the moves; that of the run if left out.
        progress: of step I and of step II, as in `Inverter`.
    """
    if each < 1:
        raise ValueError(f"augmented must be at least 1, got {each}")
    observed, seed = inverter.observed, inverter.seed
    asked = augmented_features(observed, rows, each, strength=strength, seed=seed)
    first, second = progress or (None, None)
    reconstructed = inverter.reconstruct(rows, first)
    augmented = inverter.reach(reconstructed, asked, second)
    originals, among = expect_type(observed.images(rows), Tensor), expect_type(observed.data.x_train, Tensor)
    with torch.no_grad():
        latent = inverter.generator.draw(len(rows), generator(seed, _RANDOM))
        drawn = to_pixels(inverter.generator(latent, reconstructed.labels) * 2 - 1).cpu()
    neighbours = nearest_images(augmented.images, among)
    return InversionStudy(observed, rows, originals, reconstructed, augmented, drawn, neighbours)


def _step(found: InvertedFeatures) -> dict[str, float]:
    start, error = float(found.start.mean()), float(found.error.mean())
    return {
        "feature_error_at_start": start,
        "feature_error": error,
        "lowered_by": 1 - error / start if start else 0.0,
        "same_class": float((found.predicted == found.labels).double().mean()),
    }


def _single(found: InvertedFeatures, row: int, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "feature_error_at_start": float(found.start[row]),
        "feature_error": float(found.error[row]),
        "iterations": int(found.iterations[row]),
        "seen_as": classes[int(found.predicted[row])],
    }
