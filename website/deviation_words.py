"""Rows of docs/deviations.md, and the words in which they state recipes, settings and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.settings import Recipe

__all__ = ["Item", "default", "exponent", "recipe_text", "recipe_words", "same", "values_text"]


class Item(NamedTuple):
    """A row of the page."""

    subject: str
    paper: str
    ours: str
    option: str = ""


def recipe_words(values: Sequence[object], schedule: str) -> str:
    """Epochs, batch size, weight decay, momentum and learning rate, and the schedule of the latter."""
    epochs, batch, decay, momentum, lr = values
    return f"{epochs} epochs, batches of {batch}, weight decay {decay}, momentum {momentum}, lr {lr}, {schedule}"


def recipe_text(recipe: Recipe) -> str:
    """A recipe in the words of the paper's Table 9."""
    values: dict[str, Any] = {f.name: f.default for f in fields(TrainingConfig)} | dict(recipe.values)
    milestones = ", ".join(map(str, values["milestones"]))
    schedule = f"times {values['lr_factor']:g} after {milestones}" if values["schedule"] == "steps" else "cosine"
    rates = (exponent(values["weight_decay"]), f"{values['momentum']:g}", f"{values['lr']:g}")
    return recipe_words([values["epochs"], values["batch_size"], *rates], schedule)


def same(paper: str, ours: str) -> str:
    """Ours, unless it is the paper's."""
    return "the same" if paper == ours else ours


def exponent(value: float) -> str:
    """A small number as the paper writes it: 1e-4."""
    return f"{value:.0e}".replace("e-0", "e-")


def values_text(values: Sequence[float]) -> str:
    """Numbers with commas between them."""
    return ", ".join(f"{value:g}" for value in values)


def default(settings: type[Any], name: str) -> Any:
    """The default of a dataclass's field, or what it is if it is not given."""
    (field,) = (f for f in fields(settings) if f.name == name)
    return field.metadata.get("auto", field.default)
