"""The atlas as text, as a terminal table and as one HTML file."""

from __future__ import annotations

import base64
from itertools import groupby
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from isda import __version__
from isda._utils.errors import expect_type
from isda._utils.files import write_text
from isda._utils.text import escape_control_characters
from isda.analysis.directions.atlas import DEVIATIONS, MOST_CLASSES, Atlas, ClassView, DirectionView
from isda.analysis.pages import GAP, LARGEST, as_file, strip
from isda.analysis.training_features import Observed
from isda.report.markup import Markup, boxed_table, column, document, join, tag
from isda.report.wording import counted, number

LEVEL = 0.05


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


def lacking_text(view: ClassView, asked: int) -> str | None:
    """Why a class has fewer directions than were asked for; None if it has them all."""
    if len(view.directions) == asked:
        return None
    if view.images < 2:
        return f"{counted(view.images, 'image')}: at least 2 are needed for a direction."
    if not view.directions:
        return f"{counted(view.images, 'image')} with the same features: there is no direction."
    return f"{counted(view.images, 'image')} have only {counted(len(view.directions), 'direction')}, not {asked}."


def left_out_text(atlas: Atlas) -> str | None:
    """Which classes are not shown, if nobody asked for these."""
    every = len(atlas.observed.classes)
    if len(atlas.classes) == MOST_CLASSES < every:
        return f"{len(atlas.classes)} of {every} classes are shown; --classes names others."
    return None


def verdict_text(one: DirectionView) -> str:
    """What the judge says of one direction."""
    if one.judged is None or one.corrected_p is None:
        return ""
    return (
        f"For the judge, images at opposite ends are {number(one.judged.ratio)} times as far apart as random pairs of "
        f"the class, and {number(one.judged.shuffled_ratio)} times as far as images at the same end "
        f"({one.judged.images} at each end; corrected p {p_text(one.corrected_p)})."
    )


def verdicts_text(atlas: Atlas) -> str | None:
    """What the judge says of all directions."""
    if not atlas.judged:
        return None
    clear = sum(one.corrected_p is not None and one.corrected_p < LEVEL for one in atlas.judged)
    ratios = [one.judged.ratio for one in atlas.judged if one.judged is not None]
    return (
        f"Another network ({atlas.judge}) tells the two ends of {clear} of {counted(len(ratios), 'direction')} apart "
        f"(Holm's correction, 5%): images at opposite ends are {number(sum(ratios) / len(ratios))} times as far apart "
        f"in its features as random pairs of the class, from {number(min(ratios))} to {number(max(ratios))}."
    )


def notes(atlas: Atlas) -> list[str]:
    """What is to be said beside the table of an atlas."""
    names = atlas.observed.classes
    lacking = [f"{names[view.label]}: {why}" for view in atlas.classes if (why := lacking_text(view, atlas.asked))]
    return [told for told in (verdicts_text(atlas), left_out_text(atlas), *lacking) if told]


def atlas_table(atlas: Atlas) -> Table:
    """The share of the variance of each direction, and what a judge says of it."""
    config, names = atlas.observed.trained.config, atlas.observed.classes
    drawn = Table(
        title=Text(escape_control_characters(f"Directions of {config.network} on {config.data}"), style="bold"),
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    judged = ["over random pairs", "over the same end", "corrected p"] if atlas.judged else []
    for heading in ("class", "images", "direction", "variance", *judged):
        drawn.add_column(heading, justify="left" if heading == "class" else "right")
    for view in atlas.classes:
        for index, one in enumerate(view.directions, start=1):
            cells = [names[view.label], str(view.images), str(index), percent(one.share)]
            if one.judged is not None and one.corrected_p is not None:
                cells += [number(one.judged.ratio), number(one.judged.shuffled_ratio), p_text(one.corrected_p)]
            drawn.add_row(*(Text(escape_control_characters(cell)) for cell in cells))
    return drawn


COLUMNS = 6
"""Images in a row of a strip."""
SHOWN = 52
"""Width at which one is shown, in pixels of CSS: a row fits a phone."""


def write_atlas(atlas: Atlas, path: Path, command: str) -> None:
    """Write the page; a reader never sees half of it."""
    write_text(path, render_atlas(atlas, command))


def render_atlas(atlas: Atlas, command: str) -> str:
    """The page as text; ``command`` is the command line that makes it."""
    config = atlas.observed.trained.config
    heading = f"Directions of {config.network} on {config.data}"
    made = join(["Made by ", tag("code", command), f" with isda {__version__}."])
    return document(
        heading,
        _header(atlas, heading),
        tag("main", *(_class_section(atlas, view) for view in atlas.classes)),
        tag("footer", tag("p", made)),
    )


def _header(atlas: Atlas, heading: str) -> Markup:
    observed = atlas.observed
    config = observed.trained.config
    links = (
        tag("li", tag("a", observed.classes[view.label], href=f"#class{view.label}"), f" · {_together(view)}")
        for view in atlas.classes
    )
    told = (
        f"{counted(len(observed.labels), 'training image')}, {config.method}, seed {config.seed}. For each class the "
        "directions in which its features vary most: the eigenvectors of its covariance."
    )
    how = (
        "At the ends of a direction are the images that lie furthest along it, either way: what do those of one end "
        "share that those of the other lack? Below, the feature of the image nearest to the mean of the class is moved "
        "along the direction by standard deviations of the class (σ); shown are the training images, of any class, "
        "nearest in feature space to where it lands, and what the classifier says there."
    )
    verdicts, left_out = verdicts_text(atlas), left_out_text(atlas)
    return tag(
        "header",
        tag("p", "isda directions", class_="kicker"),
        tag("h1", heading),
        tag("p", told, class_="lede"),
        tag("p", how),
        *([tag("p", verdicts, class_="finding")] if verdicts else []),
        *([tag("p", left_out, class_="note")] if left_out else []),
        tag("nav", tag("ul", *links), aria_label="Classes"),
    )


def _together(view: ClassView) -> str:
    if not view.directions:
        return "no direction"
    shares = sum(one.share for one in view.directions)
    return f"{counted(len(view.directions), 'direction')}, {percent(shares)} of the variance"


def _class_section(atlas: Atlas, view: ClassView) -> Markup:
    name = f"class{view.label}"
    lacking = lacking_text(view, atlas.asked)
    return tag(
        "section",
        tag("h2", atlas.observed.classes[view.label], id=f"{name}-heading"),
        tag("p", f"{counted(view.images, 'image')} · {_together(view)}", class_="subline"),
        *([tag("p", lacking, class_="note")] if lacking else []),
        *(
            part
            for index, one in enumerate(view.directions, start=1)
            for part in _direction(atlas, view, one, f"{atlas.observed.classes[view.label]}, direction {index}")
        ),
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def _direction(atlas: Atlas, view: ClassView, one: DirectionView, name: str) -> list[Markup]:
    ends = tag(
        "div",
        _end(atlas.observed, one.low, f"{name}, low end"),
        _end(atlas.observed, one.high, f"{name}, high end"),
        class_="pair ends",
    )
    verdict = verdict_text(one)
    return [
        tag("h3", f"{name}: {percent(one.share)} of the variance"),
        ends,
        *([tag("p", verdict, class_="note")] if verdict else []),
        tag("details", tag("summary", "A feature moved along it"), _landings(atlas.observed, view, one, name)),
    ]


def _end(observed: Observed, rows: Tensor, name: str) -> Markup:
    told = f"{name}: {_numbers(observed, rows)}."
    return tag("figure", _strip(observed, rows, told), tag("figcaption", told))


def _landings(observed: Observed, view: ClassView, one: DirectionView, name: str) -> Markup:
    moved = expect_type(view.moved, int)
    start = observed.features[moved]
    origin = observed.indices[[moved]]
    steps = [
        (f"{number(step, 1, sign=True)} σ", landing.nearest, landing.probabilities)
        for step, landing in zip(DEVIATIONS, one.landings, strict=True)
    ]
    middle = sum(step < 0 for step in DEVIATIONS)
    itself = ("not moved", origin.new_tensor([view.moved]), observed.logits(start).softmax(0))
    rows = []
    for told, shown, probabilities in (*steps[:middle], itself, *steps[middle:]):
        images = _strip(observed, shown, f"{name}, {told}: {_named(observed, shown)}")
        cell = tag("td", images, tag("span", _named(observed, shown), class_="note"))
        rows.append([tag("th", told, scope="row", class_="word"), cell, tag("td", _said(observed, probabilities))])
    head = [column("moved by"), column("nearest training images, of any class"), column("the classifier says")]
    caption = f"Image {int(origin[0])}, the nearest to the mean of the class, moved along {name}."
    return boxed_table(f"{name}: a feature moved", caption, head, rows)


def _strip(observed: Observed, rows: Tensor, told: str) -> Markup:
    columns = min(COLUMNS, len(rows))
    images = strip(observed.images(rows), columns)
    height, width = images.shape[1:]
    data = as_file(images)
    kind = "png" if data[1:4] == b"PNG" else "webp"
    # By whole factors, where they are small: pixels stay square.
    wide = columns * (SHOWN + GAP) - GAP
    return tag(
        "img",
        src=f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}",
        alt=told,
        width=wide,
        height=round(wide * height / width),
        class_="strip pixels" if width // columns <= LARGEST else "strip",
    )


def _numbers(observed: Observed, rows: Tensor) -> str:
    return "images " + ", ".join(map(str, observed.indices[rows].tolist()))


def _named(observed: Observed, rows: Tensor) -> str:
    """The classes of images, those of one class that follow each other together."""
    found = groupby(observed.classes[label] for label in observed.labels[rows].tolist())
    counts = ((name, len(list(same))) for name, same in found)
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in counts)


def _said(observed: Observed, probabilities: Tensor) -> str:
    best = probabilities.topk(min(2, len(probabilities)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ", ".join(f"{observed.classes[label]} {percent(value)}" for label, value in named)
