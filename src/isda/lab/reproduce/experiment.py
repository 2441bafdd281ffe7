"""Base classes of the paper's tables and figures: required trainings, and the cells they fill."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from isda.lab.reproduce.printed_tables import PaperTable, paper_table
from isda.lab.reproduce.training import Outcomes, Scale, Training


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """A number of a table that a training gives."""

    row: str
    column: str
    training: Training
    figure: str = "error"
    """Name of the metric."""
    base: Training | None = None
    """The training that this one is compared to on the same seeds."""
    improvement: bool = False
    """Whether the number is the improvement over the base."""


@dataclass(frozen=True, kw_only=True)
class FigureContext:
    """Where a figure reads data, computes and writes."""

    folder: Path
    scale: Scale
    data_root: Path | None
    device: torch.device


class Experiment(ABC):
    """A table or figure."""

    name: ClassVar[str]
    note: str = ""
    """What a reader must know in addition to the scale."""

    @property
    @abstractmethod
    def title(self) -> str:
        """One sentence on what it shows."""

    def with_biggan(self, word: str) -> Experiment:
        """The experiment with a BigGAN, see `isda.lab.analysis.inversion.open_biggan`; itself if it needs none."""
        return self

    @abstractmethod
    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """The required trainings, each once, without their dependencies; ``only`` as in `selected`."""

    def matches(self, only: Sequence[str]) -> bool:
        """Whether the words select anything of it."""
        return bool(self.trainings(only))


class TableExperiment(Experiment):
    """A table of the paper: cells that trainings fill, and cells that are counted or measured."""

    @property
    def printed(self) -> PaperTable:
        """The paper's own numbers."""
        return paper_table(self.name)

    @property
    def title(self) -> str:
        """As in `printed_tables`."""
        return self.printed.title

    @abstractmethod
    def cells(self) -> list[TableCell]:
        """The cells that trainings fill."""

    def counted_cells(self) -> Iterable[tuple[str, str]]:
        """Rows and columns of the cells that need no training."""
        return ()

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """The values of `counted_cells`; ``only`` as in `selected`."""
        return {}

    def printed_only(self, cells: Sequence[TableCell]) -> list[TableCell]:
        """The cells for which the paper prints a number."""
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in cells if (cell.row, cell.column) in printed]

    def selected(self, only: Sequence[str]) -> list[TableCell]:
        """The cells whose row and column contain all words ``only``, as whole words.

        Case is ignored; CIFAR-10 is not part of CIFAR-100, nor ResNet-110 of SE-ResNet-110.
        """
        return [cell for cell in self.cells() if matches_words(only, cell.row, cell.column)]

    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """The trainings of the selected cells and their bases."""
        cells = self.selected(only)
        trainings = [training for cell in cells for training in (cell.base, cell.training) if training is not None]
        return list({training.name: training for training in trainings}.values())

    def matches(self, only: Sequence[str]) -> bool:
        """Whether the words select a cell, trained or counted."""
        return super().matches(only) or any(matches_words(only, *cell) for cell in self.counted_cells())


class FigureExperiment(Experiment):
    """A figure of the paper: trainings, and an analysis that draws them."""

    title_text: ClassVar[str]

    @property
    def title(self) -> str:
        """As declared by the class."""
        return self.title_text

    @abstractmethod
    def draw(self, outcomes: Outcomes, context: FigureContext) -> list[Path]:
        """Write the pages of the figure.

        Args:
            outcomes: of the trainings, by name.
            context: see `FigureContext`.

        Raises:
            ValueError: a required run is missing.
        """

    @abstractmethod
    def all_trainings(self) -> list[Training]:
        """The required trainings."""

    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """The trainings whose name contains all words ``only``."""
        return [training for training in self.all_trainings() if _has_words(only, training.name, r"\w")]

    def command(self, context: FigureContext) -> str:
        """The command line that makes the figure."""
        return f"isda reproduce {self.name} {context.scale.options}"


def with_dependencies(trainings: Iterable[Training]) -> list[Training]:
    """The trainings and their dependencies, each once, dependencies first."""
    ordered: dict[str, Training] = {}
    for training in trainings:
        for dependency in with_dependencies(training.required):
            ordered.setdefault(dependency.name, dependency)
        ordered.setdefault(training.name, training)
    return list(ordered.values())


def matches_words(only: Sequence[str], row: str, column: str) -> bool:
    """Whether a row and its column contain all words, as whole words; of alternatives separated by commas, any.

    Example:
        >>> matches_words(["resnet-110", "cifar-10"], "ResNet-110", "CIFAR-10 basic")
        True
        >>> matches_words(["CIFAR-1"], "", "CIFAR-10")
        False
        >>> rows = ("ResNet-110", "SE-ResNet-110")
        >>> [matches_words(["CIFAR-10", "ResNet-32,ResNet-110"], row, "CIFAR-10") for row in rows]
        [True, False]
    """
    return _has_words(only, f"{row} | {column}", r"[\w-]")


def _has_words(only: Sequence[str], text: str, letter: str) -> bool:
    patterns = ("|".join(re.escape(part) for part in word.split(",") if part) for word in only)
    return all(re.search(rf"(?<!{letter})(?:{pattern})(?!{letter})", text, re.IGNORECASE) for pattern in patterns)
