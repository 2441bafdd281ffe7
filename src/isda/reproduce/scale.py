"""How large a reproduction is: the paper's own size, or less of everything, said wherever its numbers stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SCALES", "Scale"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a reproduction leaves out; at the paper's own scale nothing is, and the limits mean nothing."""

    name: str
    told: str
    """For whoever reads the numbers."""
    seeds: int
    full: bool = False
    """Whether it is the paper's."""
    images: int = 0
    """Training images."""
    epochs: int = 0
    batch_size: int = 0
    """At most so many samples per step."""
    multiply_adds: float = 0.0
    """Most of one image in one forward pass: networks are narrowed until they fit."""
    trials: int | None = None
    """Values of a setting that are tried, of those that the paper tries."""

    stand_ins: bool = False
    """Whether data that ships with a dependency stands in for what is not there."""


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="paper", told="the paper's networks, images and epochs", seeds=5, full=True),
        Scale(
            name="small",
            told="2,000 images, 10 epochs, networks narrowed to 6 million multiply-adds: for an hour or two on a CPU",
            seeds=3,
            images=2000,
            epochs=10,
            batch_size=32,
            multiply_adds=6e6,
            trials=3,
        ),
        Scale(
            name="smoke",
            told="100 images, 2 epochs, networks of a million multiply-adds: a trial of the machinery, no evidence",
            seeds=2,
            images=100,
            epochs=2,
            batch_size=20,
            multiply_adds=1e6,
            trials=2,
            stand_ins=True,
        ),
    )
}
"""By name, the largest first."""
