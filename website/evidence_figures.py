"""The tables of docs/evidence that are shorter than those of benchmarks/results; `figures.py` writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import analyse  # noqa: E402
from csv_files import read_csv  # noqa: E402
from isda.report.across import mean_ranks  # noqa: E402
from isda.report.figure_tables import FigureTable  # noqa: E402
from isda.report.statistics import mean_std  # noqa: E402
from isda.report.wording import difference_text, number  # noqa: E402
from problem_tables import DIRECTION, METHODS, means, read  # noqa: E402

__all__ = [
    "CONTROL",
    "RESULTS",
    "TABLES",
    "mean_of",
    "parts_of",
    "planned_settings",
    "results_of",
    "rows_of",
    "table_of",
]

RESULTS = "benchmarks/results"
CONTROL = "cross-entropy"
STRENGTHS = ("0.1", "0.5", "2.0", "5.0", "10.0")


@cache
def rows_of(name: str) -> tuple[dict[str, str], ...]:
    """The runs of a result file."""
    return tuple(read_csv(ROOT / RESULTS / f"{name}.csv"))


def table_of(
    rows: Sequence[analyse.Row], figures: Sequence[str] = ("error", "nll", "calibration"), control: str = CONTROL
) -> FigureTable:
    """Methods x seeds."""
    return analyse.figure_table(rows, figures, analyse.method_of, control)


def mean_of(table: FigureTable, method: str, figure: str = "error") -> float:
    """The mean of a figure over seeds."""
    return mean_std(analyse.values_of(table, method, figure)).mean


def results_of(name: str, columns: Sequence[str] = ()) -> list[str]:
    """The first table of a result page, or some of its columns."""
    lines = (ROOT / RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    first = next(index for index, text in enumerate(lines) if text.startswith("|---"))
    last = next((index for index in range(first, len(lines)) if not lines[index].startswith("|")), len(lines))
    cells = [[cell.strip() for cell in text[1:-1].split("|")] for text in lines[first - 1 : last]]
    kept = [cells[0].index(column) for column in columns] or range(len(cells[0]))
    return [f"| {' | '.join(row[index] for index in kept)} |" for row in cells]


def parts_of(name: str) -> list[str]:
    """The tables of a comparison, each below the name of its part."""
    lines: list[str] = []
    for part, own in analyse.PAGES[name](rows_of(name)).items():
        lines += [*([f"**{part[0].upper()}{part[1:]}.**", ""] if part else []), *own, ""]
    return lines[:-1]


PLANNED = {
    "isda:lambda_0=auto": "ISDA, auto",
    "isda:lambda_0=0.5": "ISDA, λ0 = 0.5",
    "mixup": "mixup",
    "mixup+isda:lambda_0=auto": "mixup + ISDA, auto",
}
"""Methods of the planned measurement."""
PLANNED_SEEDS = 5


def planned_settings() -> dict[str, FigureTable]:
    """The settings of few_images.csv in which no run is missing."""
    rows = rows_of("few_images")
    tables = {
        setting: table_of([row for row in rows if row["setting"] == setting])
        for setting in dict.fromkeys(row["setting"] for row in rows)
    }
    return {setting: table for setting, table in tables.items() if _complete(table)}


def _complete(table: FigureTable) -> bool:
    return len(table.values) > 1 and min(map(len, table.values.values())) >= PLANNED_SEEDS


def planned_few_images() -> list[str]:
    """Differences of error and negative log-likelihood to cross-entropy, a row for each setting."""
    lines: list[str] = []
    for figure, title in {"error": "test error, points", "nll": "negative log-likelihood, nats"}.items():
        lines += analyse.head([title, CONTROL, *PLANNED.values()])
        for setting, table in planned_settings().items():
            cells = [
                difference_text(table.family(figure).shown(method)) if method in table.values else ""
                for method in PLANNED
            ]
            lines.append(analyse.line([setting, number(mean_of(table, CONTROL, figure)), *cells]))
        lines.append("")
    return lines[:-1]


def strengths() -> list[str]:
    """Error and calibration error by strength; * an interval that excludes zero."""
    lines: list[str] = []
    for figure, title in {"error": "test error, %", "calibration": "calibration error, %"}.items():
        lines += analyse.head([title, CONTROL, *(f"λ0 = {float(strength):g}" for strength in STRENGTHS)])
        for augmentation, images in {"none": "no image augmentation", "crop-flip": "crops and flips"}.items():
            own = [
                row
                for row in rows_of("sensitivity")
                if (row["augmentation"], row["study"]) == (augmentation, "sensitivity")
            ]
            table = table_of(own)
            for bound, words in {"isda": "published bound", "isda-tilted": "tilted bound"}.items():
                cells = [f"{images}, {words}", number(mean_of(table, CONTROL, figure), 1)]
                cells += [_starred(table, f"{bound}:lambda_0={strength}", figure) for strength in STRENGTHS]
                lines.append(analyse.line(cells))
        lines.append("")
    return [*lines, "\\* the simultaneous 95% confidence interval of the difference to cross-entropy excludes zero"]


def _starred(table: FigureTable, method: str, figure: str) -> str:
    method = method if method in table.values else method.removesuffix(".0")
    interval = table.family(figure).shown(method)
    star = "\\*" if interval is not None and interval.excludes_zero else ""
    missing = len(table.values[CONTROL]) - len(table.values[method])
    return f"{number(mean_of(table, method, figure), 1)}{star}" + (f" ({missing} diverged)" if missing else "")


def automatic() -> list[str]:
    """Error and negative log-likelihood of cross-entropy, the grid's choice and auto."""
    lines = analyse.head(["test error, %; nats", CONTROL, "best of a grid", "auto"])
    for setting in dict.fromkeys(row["setting"] for row in rows_of("auto")):
        table = table_of([row for row in rows_of("auto") if row["setting"] == setting])
        methods = sorted(table.values, key=lambda name: (name != CONTROL, name.endswith("auto")))
        cells = [f"{number(mean_of(table, name), 1)}; {number(mean_of(table, name, 'nll'))}" for name in methods]
        lines.append(analyse.line([setting, *cells]))
    return lines


def ranks() -> list[str]:
    """Mean ranks of the classifiers over all problems."""
    tables = read(ROOT / RESULTS / "problems.csv")
    lines = analyse.head(["mean rank", *METHODS])
    for figure in ("error", "log_likelihood", "calibration"):
        own = mean_ranks({method: means(tables[figure], method, DIRECTION[figure]) for method in METHODS})
        lines.append(analyse.line([figure.replace("_", "-"), *(f"{own[method]:.2f}" for method in METHODS)]))
    return lines


TABLES: dict[str, Callable[[], list[str]]] = {
    "few_images": planned_few_images,
    "sensitivity": strengths,
    "auto": automatic,
    "problems": ranks,
    "rates": lambda: results_of("rates"),
    "unlabelled": lambda: results_of("unlabelled", ["problem", "weight 1 − weight 0"]),
    "finetune": lambda: parts_of("finetune") if analyse.from_csv("finetune") else results_of("finetune"),
}
