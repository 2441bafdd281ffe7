"""Base classes of the paper's tables and figures: required trainings, and the cells they fill."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from isda.reproduce.printed_tables import PaperTable, paper_table
from isda.reproduce.training import Scale, Training, TrainingOutcome


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """A number of a table that trainings give."""

    row: str
    column: str
    training: Training
    figure: str = "error"
    """Which of the run's results."""
    base: Training | None = None
    """The training that this one is compared to, seed by seed."""
    improvement: bool = False
    """Whether the number is by how much the figure is better than the base's."""


@dataclass(frozen=True, kw_only=True)
class FigureContext:
    """Where an analysis finds its data, computes, and writes."""

    folder: Path
    scale: Scale
    data_root: Path | None
    device: torch.device


class Experiment(ABC):
    """A table or figure."""

    name: ClassVar[str]
    note: ClassVar[str] = ""
    """What a reader of the result must know beside its scale."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it shows, in one sentence."""

    @abstractmethod
    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """Those it takes, each once, without what these need themselves; ``only`` as in `selected`."""


class TableExperiment(Experiment):
    """A table of the paper: cells that trainings fill, and cells that are counted or measured."""

    @property
    def printed(self) -> PaperTable:
        """The paper's own numbers."""
        return paper_table(self.name)

    @property
    def title(self) -> str:
        """As the data file says it."""
        return self.printed.title

    @abstractmethod
    def cells(self) -> list[TableCell]:
        """Those that trainings fill."""

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Those that take no training, by row and column, where they have the words ``only``."""
        return {}

    def selected(self, only: Sequence[str]) -> list[TableCell]:
        """The cells whose row and column have every one of the words ``only``, as whole words.

        Case does not matter; CIFAR-10 is not part of CIFAR-100, nor ResNet-110 of SE-ResNet-110.
        """
        return [cell for cell in self.cells() if matches_words(only, cell.row, cell.column)]

    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """Those of the selected cells and their bases."""
        cells = self.selected(only)
        found = [one for cell in cells for one in (cell.base, cell.training) if one is not None]
        return list({one.name: one for one in found}.values())


class FigureExperiment(Experiment):
    """A figure of the paper: trainings, and an analysis that draws them."""

    drawn: ClassVar[str]

    @property
    def title(self) -> str:
        """As the class says it."""
        return self.drawn

    @abstractmethod
    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """Write the pages of the figure.

        Args:
            made: what became of the trainings, by name.
            looking: where and at what.

        Raises:
            ValueError: what it needs is not there; the sentence says what.
        """

    @abstractmethod
    def all_trainings(self) -> list[Training]:
        """Those it takes."""

    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """Those whose name has every one of the words ``only``."""
        return [one for one in self.all_trainings() if _has_words(only, one.name, r"\w")]


def with_dependencies(trainings: Iterable[Training]) -> list[Training]:
    """The trainings and all that they need, each once, what is needed first."""
    found: dict[str, Training] = {}

    def add(one: Training) -> None:
        for need in one.needs.values():
            add(need)
        found.setdefault(one.name, one)

    for training in trainings:
        add(training)
    return list(found.values())


def matches_words(only: Sequence[str], row: str, column: str) -> bool:
    """Whether a row and its column have every one of the words, as whole words; of words with commas between, any.

    Example:
        >>> in_place(["resnet-110", "cifar-10"], "ResNet-110", "CIFAR-10 basic"), in_place(["CIFAR-1"], "", "CIFAR-10")
        (True, False)
        >>> [in_place(["CIFAR-10", "ResNet-32,ResNet-110"], row, "CIFAR-10") for row in ("ResNet-110", "SE-ResNet-110")]
        [True, False]
    """
    return _has_words(only, f"{row} | {column}", r"[\w-]")


def _has_words(only: Sequence[str], text: str, letter: str) -> bool:
    patterns = ("|".join(re.escape(one) for one in word.split(",") if one) for word in only)
    return all(re.search(rf"(?<!{letter})(?:{one})(?!{letter})", text, re.IGNORECASE) for one in patterns)
