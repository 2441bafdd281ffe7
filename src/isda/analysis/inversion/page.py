"""The page of `isda visualize`: both pictures and the figures in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch

from isda import __version__
from isda.analysis.inversion.neighbours import NEAREST
from isda.analysis.inversion.pictures import grid_png
from isda.analysis.inversion.study import Study
from isda.errors import of_type
from isda.report.cells import boxed_table, column, number_cell
from isda.report.details.pictures import png_size
from isda.report.document import document
from isda.report.markup import Markup, join, tag

__all__ = ["pictures", "render_page"]


def pictures(made: Study) -> dict[str, bytes]:
    """Name -> PNG: the images and what became of them, and the nearest training images of the augmented ones."""
    names = [made.observed.classes[label] for label in made.reconstructed.labels.tolist()]
    shape = (len(made.rows), made.each)
    augmented = made.augmented.images.unflatten(0, shape)
    training = of_type(made.observed.data.x_train, torch.Tensor)
    nearest = training[made.neighbours.positions.flatten()].unflatten(0, made.neighbours.positions.shape)
    return {
        "augmented": grid_png(
            [
                ("original", made.originals[:, None]),
                ("reconstructed", made.reconstructed.images[:, None]),
                ("augmented", augmented),
                ("random", made.random[:, None]),
            ],
            names,
        ),
        # One augmented image of each original: the first.
        "nearest": grid_png(
            [
                ("augmented", augmented[:, :1]),
                (f"{nearest.shape[1]} nearest training images", nearest[:: made.each]),
            ],
            names,
        ),
    }


def render_page(drawn: Mapping[str, bytes], record: Mapping[str, Any], title: str, command: str) -> str:
    """The page as text.

    Args:
        drawn: as `pictures` gives them.
        record: as `Study.record` gives it.
        title: the heading.
        command: the command line that made it.
    """
    told = {
        "augmented": (
            "Each row is a training image, what step I found for it, images for features that were moved as ISDA moves "
            "them, and an image of the same class that the generator made from random noise."
        ),
        "nearest": (
            f"The first augmented image of each row and the {NEAREST} training images nearest to it in pixels: what is "
            "among them, the generator may have learnt by heart."
        ),
    }
    header = tag(
        "header",
        tag("p", "isda visualize", class_="kicker"),
        tag("h1", title),
        tag("p", _lede(record), class_="lede"),
    )
    main = tag("main", *(_figure(drawn[name], told[name]) for name in told), _table(record))
    made = tag("p", join(["Made by ", tag("code", command), f" with isda {__version__}."]))
    return document(title, header, main, tag("footer", made))


def _lede(record: Mapping[str, Any]) -> str:
    one, two = record["step_1"], record["step_2"]
    return (
        f"Step I lowers the error of features by {100 * one['lowered_by']:.1f}%, step II that to the moved features by "
        f"{100 * two['lowered_by']:.1f}%. {100 * two['same_class']:.0f}% of the augmented images are still seen as "
        "their class."
    )


def _figure(png: bytes, told: str) -> Markup:
    width, height = png_size(png) or (None, None)
    source = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
    image = tag("img", src=source, alt=told, width=width, height=height, class_="picture")
    return tag("figure", tag("div", image, class_="scroll"), tag("figcaption", told))


def _table(record: Mapping[str, Any]) -> Markup:
    head = [column("Class"), *(column(name, numeric=True) for name in ("Start", "Step I", "Moved", "Step II", "Kept"))]
    rows = []
    for row in record["rows"]:
        moved = row["step_2"]
        means = [
            row["step_1"]["feature_error_at_start"],
            row["step_1"]["feature_error"],
            sum(one["feature_error_at_start"] for one in moved) / len(moved),
            sum(one["feature_error"] for one in moved) / len(moved),
        ]
        kept = sum(one["seen_as"] == row["class"] for one in moved)
        rows.append(
            [
                tag("th", row["class"], scope="row"),
                *(number_cell(f"{mean:.3g}") for mean in means),
                number_cell(f"{kept} of {len(moved)}"),
            ]
        )
    told = (
        "Squared distances of features: at the start and after step I to those of the image; before and after step II "
        "to the moved ones, means over the augmented images; how many of these are still seen as their class."
    )
    return boxed_table("Feature errors", told, head, rows)
