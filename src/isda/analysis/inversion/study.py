"""Images of a run, reconstructed and augmented: what `isda visualize` computes, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isda.analysis.inversion.inverting import Found, Inverter
from isda.analysis.inversion.moving import augmented_features
from isda.analysis.inversion.neighbours import Neighbours, nearest_images
from isda.analysis.observing import Observed
from isda.choices import check_choice
from isda.errors import of_type
from isda.networks.generative import to_pixels
from isda.seeds import generator

__all__ = ["Study", "choose_rows", "study"]

# Apart from the seeds of starts, moves and runs.
_CHOICE, _RANDOM = 0x63686F69, 0x72616E64


@dataclass(frozen=True)
class Study:
    """N images, K augmented ones of each; everything on the CPU."""

    observed: Observed
    rows: Tensor
    """(N,) of ``observed.features``."""
    originals: Tensor
    """(N, C, H, W) uint8"""
    reconstructed: Found
    """Of N images."""
    augmented: Found
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
) -> Study:
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
    originals, among = of_type(observed.images(rows), Tensor), of_type(observed.data.x_train, Tensor)
    with torch.no_grad():
        latent = inverter.generator.draw(len(rows), generator(seed, _RANDOM))
        drawn = to_pixels(inverter.generator(latent, reconstructed.labels) * 2 - 1).cpu()
    neighbours = nearest_images(augmented.images, among)
    return Study(observed, rows, originals, reconstructed, augmented, drawn, neighbours)


def _step(found: Found) -> dict[str, float]:
    start, error = float(found.start.mean()), float(found.error.mean())
    return {
        "feature_error_at_start": start,
        "feature_error": error,
        "lowered_by": 1 - error / start if start else 0.0,
        "same_class": float((found.predicted == found.labels).double().mean()),
    }


def _single(found: Found, row: int, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "feature_error_at_start": float(found.start[row]),
        "feature_error": float(found.error[row]),
        "iterations": int(found.iterations[row]),
        "seen_as": classes[int(found.predicted[row])],
    }
