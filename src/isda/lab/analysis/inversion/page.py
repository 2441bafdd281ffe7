"""The folder that `isda visualize` writes: pictures, errors, and their page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from isda.lab.analysis.inversion.generator_adapters import find_generator
from isda.lab.analysis.inversion.inverter import PIXEL_WEIGHT, Descent, Inverter
from isda.lab.analysis.inversion.study import NEAREST, InversionStudy, choose_rows, study
from isda.lab.analysis.inversion.targets import strength_of
from isda.lab.analysis.markup import Markup, boxed_table, column, data_uri, number_cell, tag
from isda.lab.analysis.pages import command_line, write_page
from isda.lab.analysis.training_features import observe
from isda.lab.choices import check_number
from isda.lab.files import atomic_write
from isda.lab.tasks.common.data import images_at

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

    parts, centres, left = [], [], 0
    for number, (_, images) in enumerate(groups):
        part = _tiled(images)
        if number:
            parts.append(torch.full((3, part.shape[1], WIDER), 255, dtype=torch.uint8))
            left += WIDER
        centres.append(left + part.shape[2] / 2)
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
    axes.set_xticks(centres, labels=[heading for heading, _ in groups], fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return written.getvalue()


def _tiled(images: Tensor) -> Tensor:
    """(3, H, W) one image of the cells (rows, columns, C, H, W)."""
    if images.shape[2] not in (1, 3):
        images = images[:, :, :1]
    factor = max(1, round(CELL / images.shape[-1]))
    cells = images.expand(-1, -1, 3, -1, -1).repeat_interleave(factor, 3).repeat_interleave(factor, 4)
    framed = torch.nn.functional.pad(cells, (0, GAP, 0, GAP), value=255)
    return framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)


def pictures(result: InversionStudy) -> dict[str, bytes]:
    """Name -> PNG: the images with their reconstructions and augmented images, and the nearest training images."""
    names = [result.observed.classes[label] for label in result.reconstructed.labels.tolist()]
    shape = (len(result.rows), result.each)
    augmented = result.augmented.images.unflatten(0, shape)
    positions = result.neighbours.positions
    training = images_at(result.observed.data.x_train, positions.flatten())
    nearest = result.observed.cropped(training).unflatten(0, positions.shape)
    return {
        "augmented": grid_png(
            [
                ("original", result.originals[:, None]),
                ("reconstructed", result.reconstructed.images[:, None]),
                ("augmented", augmented),
                ("random", result.random[:, None]),
            ],
            names,
        ),
        # One augmented image of each original: the first.
        "nearest": grid_png(
            [("augmented", augmented[:, :1]), (f"{nearest.shape[1]} nearest training images", nearest[:: result.each])],
            names,
        ),
    }


CAPTIONS = {
    "augmented": (
        "Each row shows a training image, its reconstruction (step I), images for features augmented as by ISDA (step "
        "II), and an image of the same class that the generator made from random noise."
    ),
    "nearest": (
        f"The first augmented image of each row and the {NEAREST} training images nearest to it in pixels: an "
        "augmented image that is among them may have been memorised by the generator."
    ),
}


def _lede(record: Mapping[str, Any]) -> str:
    one, two = record["step_1"], record["step_2"]
    return (
        f"Step I lowers the error of features by {100 * one['lowered_by']:.1f}%, step II that to the moved features by "
        f"{100 * two['lowered_by']:.1f}%. {100 * two['same_class']:.0f}% of the augmented images are still predicted "
        "as their class."
    )


def _figure(png: bytes, caption: str) -> Markup:
    width, height = Image.open(io.BytesIO(png)).size
    image = tag("img", src=data_uri(png), alt=caption, width=width, height=height, class_="picture")
    return tag("figure", tag("div", image, class_="scroll"), tag("figcaption", caption))


def _table(record: Mapping[str, Any]) -> Markup:
    head = [column("Class"), *(column(name, numeric=True) for name in ("Start", "Step I", "Moved", "Step II", "Kept"))]
    rows = []
    for row in record["rows"]:
        moved = row["step_2"]
        means = [
            row["step_1"]["feature_error_at_start"],
            row["step_1"]["feature_error"],
            sum(result["feature_error_at_start"] for result in moved) / len(moved),
            sum(result["feature_error"] for result in moved) / len(moved),
        ]
        kept = sum(result["seen_as"] == row["class"] for result in moved)
        rows.append(
            [
                tag("th", row["class"], scope="row"),
                *(number_cell(f"{mean:.3g}") for mean in means),
                number_cell(f"{kept} of {len(moved)}"),
            ]
        )
    caption = (
        "Squared distances of features: to those of the image at the start and after step I; to the moved ones before "
        "and after step II, means over the augmented images. Kept: augmented images still predicted as their class."
    )
    return boxed_table("Feature errors", caption, head, rows)


PAGE = "visualize.html"
MOST_AUGMENTED = 20
"""Of one image: more do not fit into a readable picture."""
MOST_OBSERVED = 10_000
"""Training images that covariances are estimated from."""


@dataclass(frozen=True, kw_only=True)
class InversionOptions:
    """Options of `isda visualize`."""

    images: int = 10
    augmented: int = 4
    classes: tuple[str, ...] = ()
    strength: float | None = None
    iterations: int = 10_000
    lr: tuple[float, float] | None = None
    pixel_weight: float = PIXEL_WEIGHT
    tolerance: float = 0.01
    truncation: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.truncation <= 1:
            raise ValueError(f"truncation must be above 0 and at most 1, got {self.truncation}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        if not 1 <= self.augmented <= MOST_AUGMENTED:
            raise ValueError(f"augmented must be from 1 to {MOST_AUGMENTED}, got {self.augmented}")
        for name in ("strength", "pixel_weight"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        self.steps()

    def steps(self) -> tuple[Descent, Descent]:
        """Optimisation of the two steps."""
        step = Descent(iterations=self.iterations, tolerance=self.tolerance)
        return (step, step) if self.lr is None else (replace(step, lr=self.lr[0]), replace(step, lr=self.lr[1]))

    def sentence(self, network: str) -> str:
        """Which network and optimisation made a picture.

        Example:
            >>> InversionOptions(lr=(10, 1), tolerance=0).sentence("resnet-32")
            'Features of resnet-32; gradient descent of 10,000 iterations at the rates 10 (step I) and 1 (step II), \
divided by 10 after every quarter, without early stopping.'
        """
        rates = "a rate of 1 over each image's feature error at the start (in the paper 10 and 1)"
        if self.lr is not None:
            rates = f"the rates {self.lr[0]:g} (step I) and {self.lr[1]:g} (step II)"
        stop = f"until its error has fallen to {self.tolerance:g} of that or stalls"
        return (
            f"Features of {network}; gradient descent of {'at most ' if self.tolerance else ''}{self.iterations:,} "
            f"iterations at {rates}, divided by 10 after every quarter, "
            f"{stop if self.tolerance else 'without early stopping'}."
        )


def draw_inversion(
    run: Path,
    generator: str | Path,
    out: Path,
    options: InversionOptions,
    data_root: Path | None,
    device: torch.device,
    progress: tuple[Callable[[int], None], Callable[[int], None]] | None = None,
) -> dict[str, Any]:
    """Invert features of a classifier's run, and write augmented.png, nearest.png and the page to the folder ``out``.

    ``generator`` is the run folder of one, or a BigGAN as `open_biggan` takes it.

    Returns all errors as plain values; ``progress`` has a callback for each step, called with the iterations so far.
    """
    source = find_generator(run, generator, options.classes, options.truncation, device)
    # Images are taken from the classes in turn: only the first so many classes are shown.
    labels = [source.classes.index(name) for name in options.classes] or range(len(source.classes))
    shown = sorted(set(labels))[: options.images if options.images > 0 else None]
    observed = observe(run, data_root, device, most=max(MOST_OBSERVED, len(shown)), labels=shown)
    rows = choose_rows(observed, options.images, options.classes, options.seed)
    first, second = options.steps()
    inverter = Inverter(
        observed,
        source.generator,
        pixel_weight=options.pixel_weight,
        first=first,
        second=second,
        seed=options.seed,
    )
    result = study(inverter, rows, options.augmented, strength=options.strength, progress=progress)
    strength = strength_of(observed) if options.strength is None else options.strength
    used = {"generator": str(generator)} | asdict(options) | {"strength": strength}
    used |= {"classes": list(options.classes) or None, "lr": None if options.lr is None else list(options.lr)}
    record: dict[str, Any] = {"run": str(run)} | used | result.record()
    drawn = pictures(result)
    for name, png in drawn.items():
        with atomic_write(out / f"{name}.png") as unfinished:
            unfinished.write_bytes(png)
    made_by = options.sentence(observed.trained.config.network)
    parts = [*(_figure(drawn[name], f"{caption} {made_by}") for name, caption in CAPTIONS.items()), _table(record)]
    title = f"Augmented images of {observed.data.name}"
    command = command_line("visualize", run, **used)
    write_page(out / PAGE, "isda visualize", title, _lede(record), parts, command)
    return record
