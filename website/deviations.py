"""docs/deviations.md, item by item from the paper to the recipes: python website/deviations.py writes it.

What the paper says is typed; what this package does is read from its recipes, settings and experiments.
"""

from __future__ import annotations

from pathlib import Path

from classifier_deviations import (
    augmentation_items,
    classifier_items,
    loss_items,
    recipe_items,
    semi_supervised_items,
)
from task_deviations import count_items, experiment_items, figure_items, generator_items, task_items

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent.parent / "docs" / "deviations.md"

HEADING = """\
# Where this differs from the paper

<!-- Written by `make docs-tables` from the recipes; do not edit. -->

Item by item: what the paper says, what `isda train` and `isda reproduce --scale paper` do by default, and which option
gives the other, where there is one. What the paper leaves open is listed too, with what we chose: "not said" means that
the paper's text does not say it, "the authors' code" is their public repository. The smaller scales of `isda reproduce`
differ by what [their table](reproduce.md#scales) says, and every reproduced page lists those of its trainings.
"""


def page() -> str:
    """The whole page as Markdown."""
    sections = {
        "Classifiers": [*recipe_items(), *classifier_items(), *augmentation_items()],
        "Robust losses and dropout (Table 5)": loss_items(),
        "Generators (Table 5)": generator_items(),
        "Semi-supervised learning (Table 6)": semi_supervised_items(),
        "Segmentation and detection (Tables 7, 11, 12)": task_items(),
        "Tables as wholes": experiment_items(),
        "Figures": figure_items(),
        "Counts (Tables 1 to 3)": count_items(),
    }
    parts = [HEADING]
    for title, items in sections.items():
        parts += [f"## {title}\n", "| | the paper | here, by default | how to get the other |", "|---|---|---|---|"]
        parts += [f"| {' | '.join(item)} |" for item in items]
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
