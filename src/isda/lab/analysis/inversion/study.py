"""Reconstructed and augmented images of a run, their errors, and the nearest training images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.lab.analysis.inversion.inverter import InvertedFeatures, Inverter
from isda.lab.analysis.inversion.targets import augmented_features
from isda.lab.analysis.training_features import Observed
from isda.lab.choices import check_choice, expect_type
from isda.lab.data.image_files import ImageFiles
from isda.lab.data.prefetch import PREFETCH_WORKERS, prefetch
from isda.lab.networks.generative import to_pixels
from isda.lab.seeds import generator as seeded_generator
from isda.lab.tasks.common.data import images_at

NEAREST = 5
"""Nearest training images, as many as in the paper's Figure 14."""

# Images that are converted to floating point at once.
CHUNK, CHUNK_ON_DISK = 2000, 100


class Neighbours(NamedTuple):
    """Nearest neighbours of N images, the nearest first."""

    positions: Tensor
    """(N, K) positions among the images that were searched."""
    distances: Tensor
    """(N, K) root mean squared difference of pixels in [0, 1]."""


def nearest_images(
    images: Tensor,
    among: Tensor | ImageFiles,
    count: int = NEAREST,
    crop: Callable[[Tensor | Sequence[Tensor]], Tensor] | None = None,
) -> Neighbours:
    """The nearest of many images, by the sum of squared differences of pixels.

    Args:
        images: uint8 (N, C, H, W).
        among: uint8 (M, C, H, W), or images on disk, which are decoded a few at a time.
        count: K.
        crop: makes images of ``among`` as large as ``images``.

    Example:
        >>> among = torch.tensor([[0], [100], [255]], dtype=torch.uint8).view(3, 1, 1, 1)
        >>> nearest_images(torch.full((1, 1, 1, 1), 230, dtype=torch.uint8), among, count=2).positions
        tensor([[2, 1]])
    """
    queries = images.flatten(1).double() / 255
    positions = torch.empty(len(queries), 0, dtype=torch.int64)
    distances = torch.empty(len(queries), 0, dtype=torch.float64)

    def measure(part: Tensor) -> Tensor:
        found = images_at(among, part)
        pixels = crop(found) if crop is not None else expect_type(found, Tensor)
        # By differences, so that an image has distance 0 to itself.
        return torch.cdist(queries, pixels.flatten(1).double() / 255, compute_mode="donot_use_mm_for_euclid_dist")

    on_disk = isinstance(among, ImageFiles)
    parts = torch.arange(len(among)).split(CHUNK_ON_DISK if on_disk else CHUNK)
    measured = prefetch(measure, parts, PREFETCH_WORKERS) if on_disk else map(measure, parts)
    for part, further in zip(parts, measured, strict=True):
        positions = torch.cat([positions, part.expand(len(queries), -1)], 1)
        distances = torch.cat([distances, further], 1)
        distances, nearest = distances.topk(min(count, distances.shape[1]), largest=False)
        positions = positions.gather(1, nearest)
    return Neighbours(positions, distances / queries.shape[1] ** 0.5)


# Distinct from the seeds of starts, targets and runs.
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
    """N images."""
    augmented: InvertedFeatures
    """N * K images, grouped by original."""
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
        """(N * K,) whether a result's features are nearer to their own target than to the image's other targets and
        to the features of the image itself.
        """
        targets = self.augmented.target.unflatten(0, (len(self.rows), self.each))
        targets = torch.cat([targets, self.reconstructed.target[:, None]], 1)
        reached = self.augmented.features.unflatten(0, (len(self.rows), self.each))
        return (torch.cdist(reached, targets).argmin(2) == torch.arange(self.each)).flatten()

    def record(self) -> dict[str, Any]:
        """Figures of all images together and of each, as plain values."""
        one, two = self.reconstructed, self.augmented
        classes = self.observed.classes
        moves = (two.target - one.target.repeat_interleave(self.each, 0)).square().sum(1)
        return {
            "images": len(self.rows),
            "augmented": self.each,
            "step_1": _step(one),
            "step_2": _step(two)
            | {"asked_move": float(moves.mean()), "nearest_to_own_target": float(self.nearest_own.double().mean())},
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
        classes: only of these; by default of all.
        seed: of the choice.
    """
    known = observed.classes
    labels = sorted({known.index(check_choice("classes", name, known)) for name in classes}) or range(len(known))
    drawn = []
    for label in labels:
        members = observed.rows_of(label)
        drawn.append(members[torch.randperm(len(members), generator=seeded_generator(seed, _CHOICE, label))].tolist())
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
    """Reconstruct images, augment their features as ISDA does, and find images for the augmented features.

    Args:
        inverter: for a run and a generator; its seed is used for all draws.
        rows: (N,) of the run's features.
        each: augmented images of each.
        strength: lambda of the draws; by default that of the run.
        progress: callbacks for step I and step II, as in `Inverter`.
    """
    if each < 1:
        raise ValueError(f"augmented must be at least 1, got {each}")
    observed, seed = inverter.observed, inverter.seed
    targets = augmented_features(observed, rows, each, strength=strength, seed=seed)
    first, second = progress or (None, None)
    reconstructed = inverter.reconstruct(rows, first)
    augmented = inverter.reach(reconstructed, targets, second)
    with torch.no_grad():
        latent = inverter.generator.draw(len(rows), seeded_generator(seed, _RANDOM))
        made = inverter.encoder.fit(inverter.generator(latent, reconstructed.labels))
        random = to_pixels(made * 2 - 1).cpu()
    neighbours = nearest_images(augmented.images, observed.data.x_train, crop=observed.cropped)
    originals = observed.network_images(rows)
    return InversionStudy(observed, rows, originals, reconstructed, augmented, random, neighbours)


def _step(result: InvertedFeatures) -> dict[str, float]:
    start, error = float(result.start.mean()), float(result.error.mean())
    return {
        "feature_error_at_start": start,
        "feature_error": error,
        "lowered_by": 1 - error / start if start else 0.0,
        "same_class": float((result.predicted == result.labels).double().mean()),
    }


def _single(result: InvertedFeatures, row: int, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "feature_error_at_start": float(result.start[row]),
        "feature_error": float(result.error[row]),
        "iterations": int(result.iterations[row]),
        "seen_as": classes[int(result.predicted[row])],
    }
