"""Figure 8: maps of features, supervised and semi-supervised, with and without ISDA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isda.analysis.maps.drawing import MapOptions, draw_maps
from isda.reproduce.experiment import FigureExperiment, Looking
from isda.reproduce.outcome import Outcome
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier, semi_supervised

__all__ = ["Figure8"]


class Figure8(FigureExperiment):
    """ResNet-110, and VAT with 4,000 labels, on CIFAR-10."""

    name = "figure-8"
    drawn = "t-SNE maps of the features of CIFAR-10's test images, with and without ISDA."

    def all_trainings(self) -> list[Training]:
        """Two pairs."""
        return [one for pair in self._pairs().values() for one in pair]

    def draw(self, made: Mapping[str, Outcome], looking: Looking) -> list[Path]:
        """A page for each pair."""
        pages = []
        for name, pair in self._pairs().items():
            runs = [made[one.name].folders for one in pair if one.name in made]
            folders = [folders[min(folders)] for folders in runs if folders]
            if folders:
                options = MapOptions(images=2000 if looking.scale.full else 500)
                page = looking.folder / f"{self.name}-{name}.html"
                draw_maps(folders, page, options, looking.data_root, looking.device)
                pages.append(page)
        if not pages:
            raise ValueError("none of its trainings has a finished run")
        return pages

    def _pairs(self) -> dict[str, list[Training]]:
        return {
            "supervised": [classifier("cifar10", "resnet-110", method) for method in ("cross-entropy", "isda")],
            "semi-supervised": [semi_supervised("cifar10", method, 4000) for method in ("vat", "vat+isda")],
        }
