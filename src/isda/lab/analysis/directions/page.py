"""The atlas as text, as a terminal table and as one HTML file."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from isda.lab.analysis.directions.atlas import DEVIATIONS, MOST_CLASSES, Atlas, ClassView, DirectionView
from isda.lab.analysis.markup import Markup, boxed_table, column, data_uri, tag
from isda.lab.analysis.pages import LARGEST, encode_image, thumbnail, write_page
from isda.lab.choices import expect_type
from isda.lab.report.tables import Cell, Column, Table
from isda.lab.report.wording import counted, number

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from isda.lab.analysis.training_features import Observed

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


def atlas_table(atlas: Atlas) -> RichTable:
    """The share of the variance of each direction, and the judge's results."""
    config, names = atlas.observed.trained.config, atlas.observed.classes
    judged = ["over random pairs", "over the same end", "corrected p"] if atlas.judged else []
    heads = ["class", "images", "direction", "variance", *judged]
    rows: list[list[Cell]] = []
    for view in atlas.classes:
        for index, direction in enumerate(view.directions, start=1):
            cells: list[Cell] = [names[view.label], str(view.images), str(index), percent(direction.share)]
            ends = direction.judged
            if ends is not None and direction.corrected_p is not None:
                cells += [number(ends.ratio), number(ends.shuffled_ratio), p_text(direction.corrected_p)]
            rows.append(cells)
    title = f"Directions of {config.network} on {config.data}"
    return Table(title, [Column(head, head) for head in heads], rows).rich()


SHOWN = 64
"""About the width of an image in CSS pixels; small ones are enlarged by a whole factor."""
TELLING_IMAGES = 4
"""Images at each end in the strip of the most telling directions."""
STYLE = """
body { max-width: 76rem; }
.images { display: flex; flex-wrap: wrap; gap: 4px; }
.images img { display: block; }
.telling { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 1.5rem 1rem; }
.telling { margin: 1rem 0 3rem; padding: 0; list-style: none; }
.telling h3 { margin: 0; font-size: 1.15rem; }
.telling p { margin: 0 0 .3rem; }
.telling .end-name { margin: .4rem 0 .15rem; color: var(--ink); }
.ends { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.ends figcaption { margin: .35rem 0 .75rem; }
.ends figcaption::before { counter-increment: none; content: none; }
details.class { border-top: 1px solid var(--rule); }
details.class > summary { padding: .8rem 0; font-size: 1.05rem; }
details.class section { margin: 0 0 2rem; padding: 0; border: 0; }
details.class h3 { margin-top: 1.75rem; }
td .images { min-width: 4.5rem; }
tr:has(.images) > * { vertical-align: middle; }
"""


def write_atlas(atlas: Atlas, path: Path, command: str) -> None:
    """Write the page; ``command`` is the command line that makes it."""
    observed, config = atlas.observed, atlas.observed.trained.config
    lede = (
        f"What varies within each class, as this network sees it ({config.method}, seed {config.seed}; "
        f"{len(observed.labels):,} training images). A direction is an eigenvector of the covariance of the features "
        "of a class; ISDA moves features along these directions."
    )
    title = f"Directions of {config.network} on {config.data}"
    parts = [_telling_section(atlas), *(_class_section(atlas, view) for view in atlas.classes)]
    write_page(path, "isda directions", title, lede, parts, command, STYLE, _intro(atlas))


def _intro(atlas: Atlas) -> list[Markup]:
    text = (
        "How to read it: for each direction, the training images that lie furthest along it, at the low and at the "
        "high end. What do the images at one end have in common that those at the other lack? It may be pose, size, "
        "colour or background; some directions have no name."
    )
    verdicts, left_out = verdicts_text(atlas), left_out_text(atlas)
    return [
        tag("p", text),
        *([tag("p", verdicts, class_="finding")] if verdicts else []),
        *([tag("p", left_out, class_="note")] if left_out else []),
    ]


def _telling_section(atlas: Atlas) -> Markup:
    """For each class the direction with the largest share x visible spread."""
    note = (
        "Of each class the direction with the largest product of its share of the variance and its visible spread: the "
        "distance in pixels between the mean images of its two ends, over the standard deviation of images at one end."
    )
    return tag(
        "section",
        tag("h2", "The most telling direction of each class", id="telling-heading"),
        tag("p", note, class_="note"),
        tag("ul", *(_telling(atlas, view) for view in atlas.classes), class_="telling"),
        aria_labelledby="telling-heading",
    )


def _telling(atlas: Atlas, view: ClassView) -> Markup:
    name = atlas.observed.classes[view.label]
    heading = tag("h3", tag("a", name, href=f"#class{view.label}"))
    if view.most_telling is None:
        return tag("li", heading, tag("p", "no direction", class_="note"))
    direction = view.directions[view.most_telling]
    visible = "" if direction.visible is None else f" · visible spread {number(direction.visible, 1)}"
    text = f"direction {view.most_telling + 1} · {percent(direction.share)} of the variance{visible}"
    ends = [
        part
        for end, rows in (("low end", direction.low), ("high end", direction.high))
        for part in (
            tag("p", end, class_="note end-name"),
            _images(atlas.observed, rows[:TELLING_IMAGES], f"{name}, {end} of the most telling direction"),
        )
    ]
    return tag("li", heading, tag("p", text, class_="note"), *ends)


def _together(view: ClassView) -> str:
    if not view.directions:
        return "no direction"
    shares = sum(direction.share for direction in view.directions)
    return f"{counted(len(view.directions), 'direction')}, {percent(shares)} of the variance"


def _class_section(atlas: Atlas, view: ClassView) -> Markup:
    # The id is inside the details: browsers open them for a link to it.
    name = atlas.observed.classes[view.label]
    lacking = lacking_text(view, atlas.requested)
    section = tag(
        "section",
        *([tag("p", lacking, class_="note")] if lacking else []),
        *(
            part
            for index, direction in enumerate(view.directions, start=1)
            for part in _direction(atlas, view, direction, f"{name}, direction {index}")
        ),
        id=f"class{view.label}",
        aria_label=name,
    )
    summary = tag("summary", tag("strong", name), f" · {counted(view.images, 'image')} · {_together(view)}")
    return tag("details", summary, section, class_="class")


def _direction(atlas: Atlas, view: ClassView, direction: DirectionView, name: str) -> list[Markup]:
    ends = tag(
        "div",
        _end(atlas.observed, direction.low, name, "low end"),
        _end(atlas.observed, direction.high, name, "high end"),
        class_="pair ends",
    )
    verdict = verdict_text(direction)
    landings = _landings(atlas.observed, view, direction, name)
    return [
        tag("h3", f"{name}: {percent(direction.share)} of the variance"),
        ends,
        *([tag("p", verdict, class_="note")] if verdict else []),
        tag("details", tag("summary", "A feature moved along it, and where it lands"), landings),
    ]


def _end(observed: Observed, rows: Tensor, name: str, end: str) -> Markup:
    caption = f"{end.capitalize()}: images {', '.join(map(str, observed.indices[rows].tolist()))}."
    return tag("figure", _images(observed, rows, f"{name}, {end}"), tag("figcaption", caption))


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
        images = _images(observed, shown, f"{name}, {move}")
        cell = tag("td", images, tag("span", _class_names(observed, shown), class_="note"))
        best = probabilities.topk(min(2, len(probabilities)))
        predicted = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        text = ", ".join(f"{observed.classes[label]} {percent(value)}" for label, value in predicted)
        rows.append([tag("th", move, scope="row", class_="word"), cell, tag("td", text)])
    head = [column("moved by"), column("nearest training images, of any class"), column("the classifier predicts")]
    caption = (
        f"Image {int(origin[0])}, the nearest to the mean of the class, moved along {name} by standard deviations of "
        "the class (σ), and the training images nearest to where its feature lands."
    )
    return boxed_table(f"{name}: a feature moved", caption, head, rows)


def _images(observed: Observed, rows: Tensor, name: str) -> Markup:
    """Training images in a row that wraps; small ones are enlarged by a whole factor, with sharp pixels."""
    images = []
    for row, image in zip(rows.tolist(), observed.images(rows), strict=True):
        small = thumbnail(image)
        height, width = small.shape[1:]
        factor = max(1, round(SHOWN / max(height, width))) if max(height, width) <= LARGEST else SHOWN / width
        images.append(
            tag(
                "img",
                src=data_uri(encode_image(small)),
                alt=f"training image {int(observed.indices[row])}, {observed.classes[int(observed.labels[row])]}",
                width=round(factor * width),
                height=round(factor * height),
                class_="pixels" if factor >= 1 else None,
            )
        )
    return tag("div", *images, class_="images", role="group", aria_label=name)


def _class_names(observed: Observed, rows: Tensor) -> str:
    """The classes of images, with consecutive images of one class counted together."""
    groups = groupby(observed.classes[label] for label in observed.labels[rows].tolist())
    counts = ((name, len(list(same))) for name, same in groups)
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in counts)
