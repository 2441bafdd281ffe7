"""Figure 9: the bound beside the expectation over training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isda.analysis.tightness.drawing import TightnessOptions, draw_tightness
from isda.reproduce.experiment import FigureExperiment, Looking
from isda.reproduce.outcome import Outcome
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier

__all__ = ["Figure9"]

MOMENTS = 20


class Figure9(FigureExperiment):
    """ResNet-110 on both CIFAR sets, with the tilted bound as a third line of ours."""

    name = "figure-9"
    drawn = "The published and the tilted bound beside the expected loss itself, over the training of ResNet-110."

    def all_trainings(self) -> list[Training]:
        """One for each set; checkpoints are kept over all of it."""
        return [classifier(data, "resnet-110", "isda", checkpoints=MOMENTS) for data in ("cifar10", "cifar100")]

    def draw(self, made: Mapping[str, Outcome], looking: Looking) -> list[Path]:
        """A page for each set."""
        pages = []
        options = TightnessOptions() if looking.scale.full else TightnessOptions(images=50, draws=100)
        for one in self.all_trainings():
            folders = made[one.name].folders if one.name in made else {}
            if folders:
                page = looking.folder / f"{self.name}-{one.settings.data}.html"
                draw_tightness(folders[min(folders)], page, options, looking.data_root, looking.device)
                pages.append(page)
        if not pages:
            raise ValueError("none of its trainings has a finished run")
        return pages
