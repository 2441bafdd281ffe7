"""What a supervised method is: options that a user can write, and a loss of a network and labelled images."""

from __future__ import annotations

from isda.classification.batches import Batches
from isda.engine.named_method import NamedMethod

__all__ = ["ClassificationMethod"]


class ClassificationMethod(NamedMethod):
    """A method of `isda train`, made with an instance of its Options, an `isda.networks.Network` and a `Config`."""

    def feed(self, source: Batches) -> None:
        """Called once before the first step with all that the run learns from: for methods that draw batches too."""
