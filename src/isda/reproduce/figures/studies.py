"""Figures 10 and 11: explicit against implicit augmentation, and sensitivity to the strength."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from isda.analysis.studies import STUDIES, Cell
from isda.analysis.studies.page import write_study
from isda.analysis.studies.results import compared
from isda.reproduce.experiment import FigureExperiment, Looking
from isda.reproduce.outcome import Outcome
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier, semi_supervised

__all__ = ["Figure10", "Figure11", "StudyFigure"]

STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Those that the paper chooses from."""


class StudyFigure(FigureExperiment):
    """Panels, each a study: `isda study` at the paper's settings."""

    study: ClassVar[str]

    @abstractmethod
    def panels(self) -> dict[str, list[tuple[Cell, Training]]]:
        """The cells of each panel, the baseline first."""

    def all_trainings(self) -> list[Training]:
        """Those of all panels."""
        return [one for cells in self.panels().values() for _, one in cells]

    def draw(self, made: Mapping[str, Outcome], looking: Looking) -> list[Path]:
        """A page for each panel."""
        pages = []
        for name, cells in self.panels().items():
            found = [made[one.name].runs if one.name in made else {} for _, one in cells]
            if found[0] and any(found[1:]):
                rows = compared([cell for cell, _ in cells], found)
                page = looking.folder / f"{self.name}-{name}.html"
                command = f"isda reproduce {self.name} --scale {looking.scale.name}"
                write_study(page, STUDIES[self.study], rows, command, f"{self.name}.html")
                pages.append(page)
        if not pages:
            raise ValueError("a panel needs a finished run of its baseline and one more")
        return pages


class Figure10(StudyFigure):
    """Wide-ResNet-28-10 on CIFAR-100, with Cutout and with AutoAugment."""

    name = "figure-10"
    drawn = "Test error against the number of explicitly drawn features, and ISDA as their limit."
    note = "All at λ0 = 0.5."
    study = "explicit"

    def panels(self) -> dict[str, list[tuple[Cell, Training]]]:
        """One for each augmentation."""
        kind = STUDIES[self.study]
        return {
            augment: [
                (cell, classifier("cifar100", "wide-resnet-28-10", cell.method, tuned=False, augment=augment))
                for cell in kind.cells(["isda:lambda_0=0.5"], kind.values)
            ]
            for augment in ("cutout", "autoaugment")
        }


class Figure11(StudyFigure):
    """Supervised: Wide-ResNet-28-10 with Cutout on CIFAR-100; semi-supervised: VAT on CIFAR-10 with 4,000 labels."""

    name = "figure-11"
    drawn = "Test error against the strength λ0, supervised and semi-supervised."
    study = "sensitivity"

    def panels(self) -> dict[str, list[tuple[Cell, Training]]]:
        """Both."""
        kind = STUDIES[self.study]
        supervised = kind.cells(["isda"], STRENGTHS)
        semi = kind.cells(["vat+isda"], STRENGTHS)
        return {
            "supervised": [
                (cell, classifier("cifar100", "wide-resnet-28-10", cell.method, tuned=False, augment="cutout"))
                for cell in supervised
            ],
            "semi-supervised": [(cell, semi_supervised("cifar10", cell.method, 4000)) for cell in semi],
        }
