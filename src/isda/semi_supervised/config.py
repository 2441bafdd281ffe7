"""The configuration of a semi-supervised run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isda.classification.config import Config

__all__ = ["SemiConfig"]


@dataclass(frozen=True, kw_only=True)
class SemiConfig(Config):
    """A classification run that also sees images without labels; batch_size counts those."""

    labels: int
    """Images with labels, those held out included."""
    unlabelled: int
    """Images used without labels."""
    labelled_per_batch: int
    """Labelled images of each step."""
    held_out_labels: float
    """Share of the labelled images that the run is judged by instead of the test set."""
    normalisation: str
    """"channel", "per-image" or "zca"."""

    of_method: ClassVar[tuple[str, ...]] = ("labelled_per_batch",)

    @property
    def samples_per_step(self) -> int:
        """The labelled ones."""
        return self.labelled_per_batch

    @property
    def images_text(self) -> str:
        """What it learns from, in words."""
        held = f", {self.test_images} of them held out" if self.held_out_labels else ""
        return f"{self.labels} labelled{held} and {self.unlabelled} unlabelled images"
