"""The atlas as text, as a terminal table and as one HTML file."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from torch import Tensor

from isda._utils.errors import expect_type
from isda.analysis.directions.atlas import DEVIATIONS, MOST_CLASSES, Atlas, ClassView, DirectionView
from isda.analysis.pages import GAP, LARGEST, encode_image, image_strip, write_page
from isda.report.markup import Markup, boxed_table, column, data_uri, tag
from isda.report.terminal_tables import add_text_row, text_table
from isda.report.wording import counted, number

if TYPE_CHECKING:
    from isda.analysis.training_features import Observed

SIGNIFICANCE = 0.05


def percent(share: float) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234)
        '12.3%'
    """
    return f"{number(100 * share, 1)}%"


def p_text(p: float) -> str:
    """A p-value.

    Example:
        >>> p_text(0.2), p_text(0.0001)
        ('0.200', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else number(p, 3)


def lacking_text(view: ClassView, requested: int) -> str | None:
    """Why a class has fewer directions than requested; None if it has them all."""
    if len(view.directions) == requested:
        return None
    if view.images < 2:
        return f"{counted(view.images, 'image')}: at least 2 are needed for a direction."
    if not view.directions:
        return f"{counted(view.images, 'image')} with the same features: there is no direction."
    return f"{counted(view.images, 'image')} have only {counted(len(view.directions), 'direction')}, not {requested}."


def left_out_text(atlas: Atlas) -> str | None:
    """A note if only the first classes are shown."""
    every = len(atlas.observed.classes)
    if len(atlas.classes) == MOST_CLASSES < every:
        return f"{len(atlas.classes)} of {every} classes are shown; --classes names others."
    return None


def verdict_text(direction: DirectionView) -> str:
    """The judge's result for one direction."""
    judged = direction.judged
    if judged is None or direction.corrected_p is None:
        return ""
    return (
        f"In the judge's features, images at opposite ends are {number(judged.ratio)} times as far apart as random "
        f"pairs of the class, and {number(judged.shuffled_ratio)} times as far as images at the same end "
        f"({judged.images} at each end; corrected p {p_text(direction.corrected_p)})."
    )


def verdicts_text(atlas: Atlas) -> str | None:
    """The judge's results for all directions."""
    if not atlas.judged:
        return None
    clear = sum(view.corrected_p is not None and view.corrected_p < SIGNIFICANCE for view in atlas.judged)
    ratios = [view.judged.ratio for view in atlas.judged if view.judged is not None]
    return (
        f"Another network ({atlas.judge}) separates the two ends of {clear} of {counted(len(ratios), 'direction')} "
        f"(Holm's correction, 5%): images at opposite ends are {number(sum(ratios) / len(ratios))} times as far apart "
        f"in its features as random pairs of the class, from {number(min(ratios))} to {number(max(ratios))}."
    )


def notes(atlas: Atlas) -> list[str]:
    """Notes below the table of an atlas."""
    names = atlas.observed.classes
    lacking = [f"{names[view.label]}: {why}" for view in atlas.classes if (why := lacking_text(view, atlas.requested))]
    return [note for note in (verdicts_text(atlas), left_out_text(atlas), *lacking) if note]


def atlas_table(atlas: Atlas) -> Table:
    """The share of the variance of each direction, and the judge's results."""
    config, names = atlas.observed.trained.config, atlas.observed.classes
    judged = ["over random pairs", "over the same end", "corrected p"] if atlas.judged else []
    heads = ["class", "images", "direction", "variance", *judged]
    table = text_table(f"Directions of {config.network} on {config.data}", heads)
    for view in atlas.classes:
        for index, direction in enumerate(view.directions, start=1):
            cells = [names[view.label], str(view.images), str(index), percent(direction.share)]
            ends = direction.judged
            if ends is not None and direction.corrected_p is not None:
                cells += [number(ends.ratio), number(ends.shuffled_ratio), p_text(direction.corrected_p)]
            add_text_row(table, cells)
    return table


COLUMNS = 6
"""Images in a row of a strip."""
SHOWN = 52
"""Width of an image in CSS pixels: a row fits a phone."""


def write_atlas(atlas: Atlas, path: Path, command: str) -> None:
    """Write the page; ``command`` is the command line that makes it."""
    observed, config = atlas.observed, atlas.observed.trained.config
    lede = (
        f"{counted(len(observed.labels), 'training image')}, {config.method}, seed {config.seed}. For each class the "
        "directions in which its features vary most: the eigenvectors of its covariance."
    )
    title = f"Directions of {config.network} on {config.data}"
    sections = [_class_section(atlas, view) for view in atlas.classes]
    write_page(path, "isda directions", title, lede, sections, command, intro=_intro(atlas))


def _intro(atlas: Atlas) -> list[Markup]:
    text = (
        "The ends of a direction show the images that lie furthest along it, either way: what do those of one end "
        "have in common that those of the other lack? Below, the feature of the image nearest to the class mean is "
        "moved along the direction by standard deviations of the class (σ); shown are the training images, of any "
        "class, nearest to it in feature space, and the classifier's probabilities."
    )
    links = (
        tag("li", tag("a", atlas.observed.classes[view.label], href=f"#class{view.label}"), f" · {_together(view)}")
        for view in atlas.classes
    )
    verdicts, left_out = verdicts_text(atlas), left_out_text(atlas)
    return [
        tag("p", text),
        *([tag("p", verdicts, class_="finding")] if verdicts else []),
        *([tag("p", left_out, class_="note")] if left_out else []),
        tag("nav", tag("ul", *links), aria_label="Classes"),
    ]


def _together(view: ClassView) -> str:
    if not view.directions:
        return "no direction"
    shares = sum(direction.share for direction in view.directions)
    return f"{counted(len(view.directions), 'direction')}, {percent(shares)} of the variance"


def _class_section(atlas: Atlas, view: ClassView) -> Markup:
    name = f"class{view.label}"
    lacking = lacking_text(view, atlas.requested)
    return tag(
        "section",
        tag("h2", atlas.observed.classes[view.label], id=f"{name}-heading"),
        tag("p", f"{counted(view.images, 'image')} · {_together(view)}", class_="subline"),
        *([tag("p", lacking, class_="note")] if lacking else []),
        *(
            part
            for index, direction in enumerate(view.directions, start=1)
            for part in _direction(atlas, view, direction, f"{atlas.observed.classes[view.label]}, direction {index}")
        ),
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def _direction(atlas: Atlas, view: ClassView, direction: DirectionView, name: str) -> list[Markup]:
    ends = tag(
        "div",
        _end(atlas.observed, direction.low, f"{name}, low end"),
        _end(atlas.observed, direction.high, f"{name}, high end"),
        class_="pair ends",
    )
    verdict = verdict_text(direction)
    return [
        tag("h3", f"{name}: {percent(direction.share)} of the variance"),
        ends,
        *([tag("p", verdict, class_="note")] if verdict else []),
        tag("details", tag("summary", "A feature moved along it"), _landings(atlas.observed, view, direction, name)),
    ]


def _end(observed: Observed, rows: Tensor, name: str) -> Markup:
    caption = f"{name}: images {', '.join(map(str, observed.indices[rows].tolist()))}."
    return tag("figure", _strip(observed, rows, caption), tag("figcaption", caption))


def _landings(observed: Observed, view: ClassView, direction: DirectionView, name: str) -> Markup:
    moved = expect_type(view.moved, int)
    start = observed.features[moved]
    origin = observed.indices[[moved]]
    steps = [
        (f"{number(step, 1, sign=True)} σ", landing.nearest, landing.probabilities)
        for step, landing in zip(DEVIATIONS, direction.landings, strict=True)
    ]
    middle = sum(step < 0 for step in DEVIATIONS)
    itself = ("not moved", origin.new_tensor([view.moved]), observed.logits(start).softmax(0))
    rows = []
    for move, shown, probabilities in (*steps[:middle], itself, *steps[middle:]):
        images = _strip(observed, shown, f"{name}, {move}: {_class_names(observed, shown)}")
        cell = tag("td", images, tag("span", _class_names(observed, shown), class_="note"))
        best = probabilities.topk(min(2, len(probabilities)))
        predicted = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        text = ", ".join(f"{observed.classes[label]} {percent(value)}" for label, value in predicted)
        rows.append([tag("th", move, scope="row", class_="word"), cell, tag("td", text)])
    head = [column("moved by"), column("nearest training images, of any class"), column("the classifier says")]
    caption = f"Image {int(origin[0])}, the nearest to the mean of the class, moved along {name}."
    return boxed_table(f"{name}: a feature moved", caption, head, rows)


def _strip(observed: Observed, rows: Tensor, caption: str) -> Markup:
    columns = min(COLUMNS, len(rows))
    images = image_strip(observed.images(rows), columns)
    height, width = images.shape[1:]
    wide = columns * (SHOWN + GAP) - GAP
    return tag(
        "img",
        src=data_uri(encode_image(images)),
        alt=caption,
        width=wide,
        height=round(wide * height / width),
        class_="strip pixels" if width // columns <= LARGEST else "strip",
    )


def _class_names(observed: Observed, rows: Tensor) -> str:
    """The classes of images, with consecutive images of one class counted together."""
    groups = groupby(observed.classes[label] for label in observed.labels[rows].tolist())
    counts = ((name, len(list(same))) for name, same in groups)
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in counts)
