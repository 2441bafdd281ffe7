"""What the page shows of one comparison: tables and pictures for the template report.html."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from isda.lab.engine.config import Curve
from isda.lab.engine.run_records import is_number
from isda.lab.report.comparison import Comparison
from isda.lab.report.predictions import MethodPredictions, comparison_predictions
from isda.lab.report.statistics import mean_std
from isda.lab.report.tables import Cell, Column, Estimate, Table
from isda.lab.report.wording import counted


def comparison_section(comparison: Comparison, folder: Path, planned: float | None = None) -> dict[str, Any]:
    """The content of the section of one comparison; run folders are named relative to ``folder``."""
    predictions = comparison_predictions(comparison)
    return {
        "comparison": comparison,
        "title": comparison.title,
        "headline": comparison.finding(planned),
        "curves": _curves(comparison),
        "figures": _further_figures(comparison),
        "predictions": predictions,
        "classes": _worst_classes(comparison),
        "confusions": _confusions(predictions),
        "mistakes": [(method.label, _mistakes(method)) for method in predictions if method.mistakes(1)],
        "pictures": list(_pictures(comparison)),
        "folder": folder,
    }


def _curves(comparison: Comparison) -> list[Curve]:
    """The curves that runs have recorded, that of the compared figure first; other versions may declare others."""
    figure = comparison.figure
    main = Curve(metric=figure.metric, title=figure.title, unit=figure.unit)
    declared = {curve.metric: curve for run in comparison.runs for curve in (main, *run.config.curves)}
    return [curve for curve in declared.values() if any(run.curve(curve.metric) for run in comparison.runs)]


def _further_figures(comparison: Comparison) -> Table | None:
    """The other figures of finished runs, if any; in bold what is clearly better than the baseline."""
    columns = [Column("method", "method")]
    cells: list[Sequence[Cell]] = [[method.label for method in comparison.methods]]
    for figure in comparison.config.figures[1:]:
        if not any(method.of(figure) for method in comparison.methods):
            continue
        sign = 1 if figure.lower_is_better else -1
        differences = comparison.family(figure)
        better = [label for label, one in differences.items() if one.excludes_zero and sign * one.mean < 0]
        columns.append(Column(figure.name, figure.heading, "std"))
        cells.append([method.mean(figure, strong=method.label in better) for method in comparison.methods])
    caption = (
        "Further figures, mean ± standard deviation over seeds; in bold what is clearly better than "
        f"{comparison.baseline.label}'s (simultaneous 95% intervals of each figure)."
    )
    rows = list(zip(*cells, strict=True))
    return Table("Further figures", columns, rows, caption) if len(columns) > 1 else None


MOST_CLASSES = 24
"""Of a chart."""


def _worst_classes(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The metrics that tasks have written for each class into result.json, with the worst classes of each."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in comparison.runs:
        for key, of_classes in ((run.result or {}).get("per_class") or {}).items():
            for name, value in of_classes.items():
                if is_number(value):
                    values.setdefault(key, {}).setdefault(name, []).append(value)
    worst = []
    for key, of_classes in values.items():
        means = {name: mean_std(found).mean for name, found in of_classes.items()}
        order = sorted(means, key=means.__getitem__, reverse=comparison.figure.lower_is_better)
        worst.append((key, [name for name in means if name in order[:MOST_CLASSES]]))
    return worst


MOST_IN_MATRIX = 20
"""Classes of a confusion matrix; with more there is none."""


def _confusions(methods: Sequence[MethodPredictions]) -> list[Table]:
    if not methods or len(methods[0].classes) > MOST_IN_MATRIX:
        return []
    shares = [100 * method.confusion() for method in methods]
    # One scale for all methods, so that they can be compared; the diagonal is not part of it.
    largest = max(float(share.clone().fill_diagonal_(0).max()) for share in shares) or 1.0
    return [_matrix(method, share, largest) for method, share in zip(methods, shares, strict=True)]


def _matrix(method: MethodPredictions, shares: Tensor, largest: float) -> Table:
    rows: list[list[Cell]] = []
    for row, name in enumerate(method.classes):
        cells: list[Cell] = []
        for column, share in enumerate(shares[row].tolist()):
            shade = 0.0 if row == column else 0.6 * share / largest
            cells.append(Estimate(share, digits=0, strong=row == column, shade=shade) if share >= 0.5 else None)
        rows.append([name, *cells])
    columns = [Column("class", ""), *(Column(name, name, "std") for name in method.classes)]
    caption = f"{method.label}: classes (rows) and predictions (columns), in percent of the images of a class."
    return Table(f"Confusions of {method.label}", columns, rows, caption, compact=True)


MOST_MISTAKES, MOST_PICTURES = 8, 4
"""Of a method; pictures are those of one of its runs."""


def _mistakes(method: MethodPredictions) -> list[dict[str, Any]]:
    pictures = []
    for mistake in method.mistakes(MOST_MISTAKES):
        confidence = f"{100 * mistake.confidence:.1f}%" if mistake.confidence < 0.9995 else ">99.9%"
        wrong = f"wrong in {mistake.wrong} of {counted(len(method.runs), 'run')}"
        image = Image.fromarray(mistake.picture.permute(1, 2, 0).squeeze(2).numpy())
        lines = [f"{mistake.label} → {mistake.predicted}", confidence, wrong]
        pictures.append({"source": image_source(image), "width": 72, "height": 72, "lines": lines})
    return pictures


def _pictures(comparison: Comparison) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """PNG files from the folder ``pictures`` of one run of each method, such as samples of a generator."""
    for method in comparison.methods:
        files = [sorted((run.folder / "pictures").glob("*.png"))[:MOST_PICTURES] for run in method.runs]
        pictures = []
        for file in next(filter(None, files), []):
            with Image.open(file) as image:
                size = {"width": image.width, "height": image.height}
                pictures.append({"source": image_source(image), "lines": [file.stem], **size})
        if pictures:
            yield method.label, pictures


def image_source(image: Image.Image) -> str:
    """An image as a data URI."""
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
