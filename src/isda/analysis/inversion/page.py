"""Output of `isda visualize`: image grids and one HTML page, from a run folder and a generator folder."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda import __version__
from isda._utils.errors import expect_type
from isda._utils.files import atomic_write, write_text
from isda.analysis.inversion.generator_adapters import generator_of_run, load_matching_generator
from isda.analysis.inversion.inverter import PIXEL_WEIGHT, Descent, Inverter, check_pixel_weight
from isda.analysis.inversion.study import NEAREST, InversionStudy, choose_rows, study
from isda.analysis.inversion.targets import check_strength, strength_of
from isda.analysis.training_features import observe
from isda.report.markup import Markup, boxed_table, column, document, join, number_cell, tag
from isda.report.pictures import png_size

GAP, WIDER = 2, 24
"""Pixels between two cells, and between two groups of columns."""
CELL = 64
"""Small images are enlarged by a whole factor to about this side."""
DPI = 100


def grid_png(groups: Sequence[tuple[str, Tensor]], names: Sequence[str]) -> bytes:
    """A PNG with a row for each image and its columns in groups.

    Args:
        groups: a heading, and uint8 images (rows, columns, C, H, W) of one channel or three.
        names: of the rows.

    Example:
        >>> grid_png([("original", torch.zeros(2, 1, 1, 8, 8, dtype=torch.uint8))], ["a", "b"])[1:4]
        b'PNG'
    """
    from matplotlib.figure import Figure

    parts, places, left = [], [], 0
    for number, (_, images) in enumerate(groups):
        part = _tiled(images)
        if number:
            parts.append(torch.full((3, part.shape[1], WIDER), 255, dtype=torch.uint8))
            left += WIDER
        places.append(left + part.shape[2] / 2)
        parts.append(part)
        left += part.shape[2]
    sheet = torch.cat(parts, 2)
    _, height, width = sheet.shape
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="nearest", aspect="auto")
    row = height / len(names)
    axes.set_yticks([row * (i + 0.5) for i in range(len(names))], labels=list(names), fontsize=8, parse_math=False)
    axes.xaxis.tick_top()
    axes.set_xticks(places, labels=[heading for heading, _ in groups], fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return written.getvalue()


def _tiled(images: Tensor) -> Tensor:
    """(3, H, W) the cells (rows, columns, C, H, W) beside and below one another."""
    if images.shape[2] not in (1, 3):
        images = images[:, :, :1]
    factor = max(1, round(CELL / images.shape[-1]))
    cells = images.expand(-1, -1, 3, -1, -1).repeat_interleave(factor, 3).repeat_interleave(factor, 4)
    framed = torch.nn.functional.pad(cells, (0, GAP, 0, GAP), value=255)
    return framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)


def pictures(made: InversionStudy) -> dict[str, bytes]:
    """Name -> PNG: the images and what became of them, and the nearest training images of the augmented ones."""
    names = [made.observed.classes[label] for label in made.reconstructed.labels.tolist()]
    shape = (len(made.rows), made.each)
    augmented = made.augmented.images.unflatten(0, shape)
    training = expect_type(made.observed.data.x_train, torch.Tensor)
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
        record: as `InversionStudy.record` gives it.
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


PAGE = "visualize.html"
MOST_AUGMENTED = 20
"""Of one image: more do not fit into a picture that can be looked at."""
MOST_LOOKED_AT = 10_000
"""Training images that covariances are estimated from; that takes a network minutes on a CPU where it is large."""


@dataclass(frozen=True, kw_only=True)
class InversionOptions:
    """How to invert; as the options of `isda visualize`."""

    images: int = 10
    augmented: int = 4
    classes: tuple[str, ...] = ()
    strength: float | None = None
    iterations: int = 10_000
    lr: tuple[float, float] | None = None
    pixel_weight: float = PIXEL_WEIGHT
    tolerance: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        if not 1 <= self.augmented <= MOST_AUGMENTED:
            raise ValueError(f"augmented must be from 1 to {MOST_AUGMENTED}, got {self.augmented}")
        if self.strength is not None:
            check_strength(self.strength)
        check_pixel_weight(self.pixel_weight)
        self.steps()

    def steps(self) -> tuple[Descent, Descent]:
        """How each of the two steps descends."""
        step = Descent(iterations=self.iterations, tolerance=self.tolerance)
        return (step, step) if self.lr is None else (replace(step, lr=self.lr[0]), replace(step, lr=self.lr[1]))


def draw_inversion(
    run: Path,
    generator: Path,
    out: Path,
    options: InversionOptions,
    data_root: Path | None,
    device: torch.device,
    progress: tuple[Callable[[int], None], Callable[[int], None]] | None = None,
) -> dict[str, Any]:
    """Invert, and write augmented.png, nearest.png and the page; returns all figures as plain values.

    Args:
        run: the folder of a classifier's run.
        generator: that of a generator of the same data.
        out: the folder for what is written.
        options: how.
        data_root: the folder of data sets.
        device: where.
        progress: told the iterations that are over, of each of the two steps.
    """
    trained = load_matching_generator(run, generator, options.classes)
    observed = observe(run, data_root, device, most=max(MOST_LOOKED_AT, len(trained.classes)))
    rows = choose_rows(observed, options.images, options.classes, options.seed)
    first, second = options.steps()
    inverter = Inverter(
        observed,
        generator_of_run(trained, device),
        pixel_weight=options.pixel_weight,
        first=first,
        second=second,
        seed=options.seed,
    )
    made = study(inverter, rows, options.augmented, strength=options.strength, progress=progress)
    used = strength_of(observed) if options.strength is None else options.strength
    asked = {"generator": str(generator)} | asdict(options) | {"strength": used}
    asked |= {"classes": list(options.classes) or None, "lr": None if options.lr is None else list(options.lr)}
    record: dict[str, Any] = {"run": str(run)} | asked | made.record()
    drawn = pictures(made)
    for name, png in drawn.items():
        with atomic_write(out / f"{name}.png") as unfinished:
            unfinished.write_bytes(png)
    title = f"Augmented images of {observed.data.name}"
    write_text(out / PAGE, render_page(drawn, record, title, _command(run, asked)))
    return record


def _command(run: Path, asked: Mapping[str, object]) -> str:
    """The command line that makes the page again."""
    words = ["isda", "visualize", str(run)]
    for name, value in asked.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
