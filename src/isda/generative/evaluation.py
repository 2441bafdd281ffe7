"""The figures of a generator: as many images as there are real ones to compare to, as a judge sees both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isda.engine.processes import Processes
from isda.generative.judge import Judge, Seen
from isda.generative.metrics import diversity_by_class, frechet_distance, kernel_distance
from isda.generators import make_images
from isda.networks.generative import ImageGenerator
from isda.seeds import generator

__all__ = ["MOST_IMAGES", "Comparison", "Measured", "compare"]

MOST_IMAGES = 5000
"""Real images that generated ones are compared to: the first of the test set, or of those held out."""

# Apart from the seeds of steps and epochs.
_EVALUATION = 0x6D656173


@dataclass(frozen=True)
class Measured:
    """Figures of one generator."""

    fid: float
    kid: float
    diversity: dict[str, float | None]
    """By class, relative to real images."""
    accuracy: dict[str, float | None]
    """By class, the share of images that the judge sees as what was intended."""
    right: float
    """That of all classes, in percent."""

    @property
    def mean_diversity(self) -> float:
        """Over the classes that have it; 0 if none has."""
        known = [value for value in self.diversity.values() if value is not None]
        return sum(known) / len(known) if known else 0.0

    def figures(self) -> dict[str, float]:
        """By the names of `isda.generative.figures`, and the diversity of the class that has the least."""
        least = min((value for value in self.diversity.values() if value is not None), default=0.0)
        return {
            "fid": self.fid,
            "kid": self.kid,
            "diversity": self.mean_diversity,
            "least_diversity": least,
            "accuracy": self.right,
        }

    def per_class(self) -> dict[str, Any]:
        """As result.json has it."""
        return {"diversity": self.diversity, "accuracy": self.accuracy}


@dataclass(frozen=True)
class Comparison:
    """Real images as a judge sees them, for any number of generators, or states of one, to be compared to."""

    judge: Judge
    seen: Seen
    labels: Tensor
    """(N,) of the real images; as many generated ones are made of each class."""
    classes: tuple[str, ...]
    processes: Processes

    @classmethod
    def to(
        cls, images: Tensor, labels: Tensor, classes: tuple[str, ...], judge: Judge, processes: Processes
    ) -> Comparison:
        """Compare to the first of these uint8 images (N, C, H, W) with classes (N,)."""
        images, labels = images[:MOST_IMAGES], labels[:MOST_IMAGES].cpu()
        return cls(judge, judge.see(images, processes.device), labels, classes, processes)

    def measure(self, network: ImageGenerator, seed: int) -> Measured:
        """The figures of a generator, with latent vectors that follow from the seed; in all processes alike."""
        processes = self.processes
        images = make_images(network, self.labels, generator(seed, _EVALUATION))
        mine = self.judge.see(images.tensor_split(processes.world)[processes.rank], processes.device)
        return compare(self.seen, self.labels, Seen.joined(processes.gather([mine])), self.labels, self.classes)


def compare(real: Seen, real_labels: Tensor, generated: Seen, labels: Tensor, classes: Sequence[str]) -> Measured:
    """All figures, from what a judge saw.

    Args:
        real: what it saw in real images.
        real_labels: (N,) their classes.
        generated: what it saw in generated ones.
        labels: (M,) the classes that were intended.
        classes: their names.
    """
    diversity = diversity_by_class(real.features, real_labels, generated.features, labels, len(classes))
    hits = (generated.classes == labels).double()
    shares = [float(hits[labels == label].mean()) if (labels == label).any() else None for label in range(len(classes))]
    return Measured(
        fid=frechet_distance(real.features, generated.features),
        kid=kernel_distance(real.features, generated.features),
        diversity=dict(zip(classes, diversity, strict=True)),
        accuracy=dict(zip(classes, shares, strict=True)),
        right=100 * float(hits.mean()),
    )
