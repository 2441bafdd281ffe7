"""What a moved feature looks like, by a generator: the paper's two steps, one image at a time and not to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from isda.analysis.explorer.scene import View
from isda.analysis.explorer.workers import Abandoned
from isda.analysis.inversion import Descent, Found, Inverter, generator_of_run
from isda.analysis.inversion.fitting import fitting_pair
from isda.analysis.observing import Observed
from isda.analysis.thumbnails import as_file, strip

__all__ = ["Imagined", "Imagining"]

STEP = Descent(iterations=1000, tolerance=0.02)
"""A tenth of the paper's iterations: somebody is waiting."""
REMEMBERED = 100


@dataclass(frozen=True)
class Imagined:
    """An image for a view."""

    file: bytes
    """The image, its reconstruction, and the image for the moved feature, side by side: a PNG file."""
    left: float
    """Its feature error, over that of the latent vector which step I started from."""
    seen_as: int
    """The class that the run's classifier sees in it."""


class Imagining:
    """Makes images for views, one after another; those that were made are remembered.

    Args:
        observed: the run.
        generator: the folder of a run of `isda generate train` on the same data.
        device: where to compute.
    """

    def __init__(self, observed: Observed, generator: Path, device: torch.device | str = "cpu") -> None:
        made = generator_of_run(fitting_pair(observed.folder, generator), device)
        self.inverter = Inverter(observed, made, first=STEP, second=STEP)
        self._lock = Lock()
        self._found: dict[int, Found] = {}
        self._made: dict[tuple[int, tuple[float, ...]], Imagined] = {}

    def __call__(self, view: View, abandoned: Callable[[], bool] = lambda: False) -> Imagined:
        """The image for a view.

        Args:
            view: whose feature it should have.
            abandoned: asked now and then whether nobody waits for it any more.

        Raises:
            Abandoned: nobody does.
        """

        def look(iterations: int) -> None:
            if abandoned():
                raise Abandoned

        with self._lock:  # the page may ask for the next before this one is made
            if (made := self._made.get((view.row, view.moves))) is None:
                made = self._made[view.row, view.moves] = self._make(view, look)
                _keep_last(self._made)
            return made

    def _make(self, view: View, look: Callable[[int], None]) -> Imagined:
        row = torch.tensor([view.row])
        if (found := self._found.get(view.row)) is None:
            found = self._found[view.row] = self.inverter.reconstruct(row, look)
            _keep_last(self._found)
        moved = self.inverter.reach(found, view.feature[None], look)
        images = [self.inverter.observed.images(row)[0], found.images[0], moved.images[0]]
        left = float(moved.error[0] / found.start[0]) if found.start[0] > 0 else 0.0
        return Imagined(as_file(strip(images, 3)), left, int(moved.predicted[0]))


def _keep_last(made: dict[Any, Any]) -> None:
    if len(made) > REMEMBERED:
        made.pop(next(iter(made)))
