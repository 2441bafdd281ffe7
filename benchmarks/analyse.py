"""The tables of differences in results/*.md, from the figures of every run in results/*.csv.

    python benchmarks/analyse.py            repeats no run: it replaces the marked parts of the pages

Each comparison is a layout of methods x paired seeds: differences to the control have Dunnett's simultaneous 95%
confidence intervals, with one variance pooled over all methods. Its first figure is the primary one; the others are
families of their own. The scripts that make the runs write their pages with the same functions.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from csv_files import read_csv
from figure_tables import FigureTable
from isda.lab.analysis.studies import AblationStudy, SensitivityStudy, StudyCell
from isda.lab.report.statistics import LEVEL, Interval, mean_std
from isda.lab.report.wording import difference_text, interval_notes, intervals_text, plus_minus
from pooling import Effect, pooled_effect

__all__ = ["RESULTS", "from_csv", "marked", "refresh"]

RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, str]
THREE = {"error": "test error, %", "nll": "negative log-likelihood", "calibration": "calibration error, %"}


class ControlledTable(FigureTable):
    """A comparison with its first method, whatever its name."""

    @cached_property
    def control(self) -> str:
        """The first method."""
        return next(iter(self.values))


def figure_table(rows: Iterable[Row], figures: Sequence[str], label: Callable[[Row], str], control: str) -> FigureTable:
    """The runs of one comparison; the control is put first."""
    values: dict[str, dict[int, dict[str, float]]] = {control: {}}
    for row in rows:
        values.setdefault(label(row), {})[int(row["seed"])] = {name: float(row[name]) for name in figures}
    return ControlledTable("", tuple(figures), values)


def method_of(row: Row) -> str:
    """The method of a run."""
    return row["method"]


def option(rows: Iterable[Row], method: str, name: str, label: Callable[[Row], str] = method_of) -> str:
    """An option of a method; empty if it has none."""
    options = next(json.loads(row["options"]) for row in rows if label(row) == method)
    return str(options.get(name, ""))


def description(table: FigureTable, also: str = "") -> list[str]:
    """How the differences of a table were made, as a paragraph."""
    primary, *others = table.figures
    family = table.family(primary)
    apart = ", computed separately for each metric" if others else ""
    words = [f"Δ vs {table.control}, {intervals_text(family)}{apart}.", *interval_notes(family)]
    words.append(also)
    return [" ".join(filter(None, words)), ""]


def head(names: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]


def line(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def values_of(table: FigureTable, method: str, figure: str) -> list[float]:
    """A figure of each run of a method."""
    return list(table.by_seed(figure)[method].values())


def figure_cells(table: FigureTable, method: str, digits: Mapping[str, int] | None = None) -> list[str]:
    """Mean ± standard deviation of each figure, and its difference to the control."""
    cells = []
    for figure in table.figures:
        places = (digits or {}).get(figure, 2)
        cells.append(plus_minus(*mean_std(values_of(table, method, figure)), places))
        cells.append(difference_text(table.family(figure).get(method), places))
    return cells


def titles(figures: Mapping[str, str]) -> list[str]:
    """Column heads of figures and their differences."""
    return [text for title in figures.values() for text in (title, "Δ")]


def rivals(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Every rival with its chosen strength."""
    table = figure_table(rows, list(THREE), method_of, "cross-entropy")
    lines = description(table, "Negative is better.") + head(["method", "strength", *titles(THREE), "seconds"])
    for method in table.values:
        own = [row for row in rows if row["method"] == method]
        seconds = statistics.fmean(float(row["seconds"]) for row in own)
        lines.append(line([method, own[0]["strength"], *figure_cells(table, method), f"{seconds:.0f}"]))
    return {"": lines}


ABLATED = "isda:lambda_0=2"
SAME = {f"{ABLATED},bound=tilted": "isda-tilted:lambda_0=2"}
"""Two names of one method."""
STUDIED: dict[str, list[StudyCell]] = {
    "sensitivity": SensitivityStudy.cells(SensitivityStudy.methods, (0.1, 0.5, 2.0, 5.0, 10.0)),
    "ablation": [
        replace(cell, method=SAME.get(cell.method, cell.method)) for cell in AblationStudy.cells((ABLATED,), ())
    ],
}
"""The methods of sensitivity.csv by study, with their labels."""


def study_table(rows: Sequence[Row], setting: str, study: str) -> FigureTable:
    """The runs of a study: methods x seeds."""
    methods = [cell.method for cell in STUDIED[study]]
    own = [row for row in rows if row["setting"] == setting and row["method"] in methods]
    own.sort(key=lambda row: methods.index(row["method"]))
    return figure_table(own, list(THREE), method_of, "cross-entropy")


def sensitivity(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Strengths and parts of ISDA, with and without image augmentation."""
    parts = {}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        for study, cells in STUDIED.items():
            table = study_table(rows, setting, study)
            lines = description(table, "Negative is better.") + head(["", "seeds", *titles(THREE)])
            for cell in cells:
                if cell.method in table.values:
                    figures = figure_cells(table, cell.method, {"nll": 3})
                    lines.append(line([cell.label, str(len(table.values[cell.method])), *figures]))
            parts[f"{setting}, {study}"] = lines
    return parts


CAMVID = {"miou": "mIoU, %", "miou_multi_scale_flip": "mIoU multi-scale + flip, %"}


def _camvid_label(row: Row) -> str:
    """ISDA by its bound and covariance."""
    if row["method"] == "cross-entropy":
        return row["method"]
    return f"ISDA{', tilted' if row['method'] == 'isda-tilted' else ''}, {json.loads(row['options'])['covariance']}"


def camvid_table(rows: Sequence[Row]) -> FigureTable:
    """Kinds of ISDA x seeds."""
    return figure_table(rows, list(CAMVID), _camvid_label, "cross-entropy")


def camvid(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Kinds of ISDA on segmentation."""
    table = camvid_table(rows)
    lines = description(table, "Positive is better.") + head(["method", "lambda_0", *titles(CAMVID)])
    for method in table.values:
        strength = option(rows, method, "lambda_0", _camvid_label)
        lines.append(line([method, strength, *figure_cells(table, method)]))
    return {"": lines}


def transfer(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Backbones trained with and without ISDA, a comparison for each data set."""
    tables = {
        data: figure_table([row for row in rows if row["data"] == data], list(THREE), method_of, "cross-entropy")
        for data in dict.fromkeys(row["data"] for row in rows)
    }
    first = next(iter(tables.values()))
    lines = [f"Δ is ISDA − cross-entropy, {intervals_text(first.family('error'))}, for each data set and figure.", ""]
    lines += head(["data", "figure", "seeds", "cross-entropy", "ISDA", "Δ"])
    for data, table in tables.items():
        for figure, title in THREE.items():
            means = [plus_minus(*mean_std(values_of(table, method, figure))) for method in ("cross-entropy", "isda")]
            difference = difference_text(table.family(figure).get("isda"))
            seeds = str(table.family(figure).layout.seed_count)
            lines.append(line([data, title.removeprefix("test "), seeds, *means, difference]))
    return {"": lines}


def generated(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Classifiers with generated images, and with ISDA."""
    table = figure_table(rows, list(THREE), method_of, "cross-entropy")
    lines = description(table, "Negative is better.") + head(["method", *titles(THREE), "seconds"])
    for method in table.values:
        seconds = statistics.fmean(float(row["seconds"]) for row in rows if row["method"] == method)
        cells = figure_cells(table, method, dict.fromkeys(THREE, 3))
        lines.append(line([method, *cells, f"{seconds:.0f}"]))
    return {"": lines}


def algorithm_of(row: Row) -> str:
    """The method of a run without its options."""
    return row["method"].partition(":")[0]


def semi_tables(rows: Sequence[Row]) -> dict[str, FigureTable]:
    """Methods x seeds of each setting."""
    parts = {}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == setting]
        parts[setting] = figure_table(own, list(THREE), algorithm_of, algorithm_of(own[0]))
    return parts


def semi_overall(rows: Sequence[Row], figure: str = "error") -> tuple[Interval, int]:
    """The effect of ISDA over the algorithms of all settings, and the number of pairs of runs."""

    def label(row: Row) -> str:
        return f"{row['setting']} {algorithm_of(row)}"

    overall = figure_table(rows, [figure], label, label(rows[0])).isda_overall(figure)
    assert overall is not None
    return overall


def semi_composition(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Semi-supervised algorithms with their own choices, alone and with ISDA: over all settings, then each of them."""
    lines = ["From ISDA: the method − the same one without +isda. Negative is better.", ""]
    lines += head(["figure", "pairs of runs", "from ISDA, Student's 95% confidence interval"])
    for figure, title in THREE.items():
        effect, pairs = semi_overall(rows, figure)
        lines.append(line([title, str(pairs), difference_text(effect, 3 if figure == "nll" else 2)]))
    parts = {"": lines}
    for setting, table in semi_tables(rows).items():
        added = {figure: table.isda_family(figure) for figure in THREE}
        lines = [
            f"From ISDA: the method − the same one without +isda, {intervals_text(added['error'])}, "
            "computed separately for each metric. Negative is better.",
            "",
            *head(["method", *(text for title in THREE.values() for text in (title, "from ISDA"))]),
        ]
        for method in table.values:
            cells = [next(r["method"] for r in rows if r["setting"] == setting and algorithm_of(r) == method)]
            for figure in THREE:
                digits = 3 if figure == "nll" else 2
                cells.append(plus_minus(*mean_std(values_of(table, method, figure)), digits))
                cells.append(difference_text(added[figure].get(method), digits))
            lines.append(line(cells))
        parts[setting] = lines
    return parts


SENTENCES_CONTROL = "ISDAClassifier"


def sentence_tables(rows: Sequence[Row]) -> dict[str, dict[str, FigureTable]]:
    """A table for each problem and figure."""
    names = dict.fromkeys(row["setting"] for row in rows)
    return {
        name: {
            figure: figure_table(
                [row for row in rows if row["setting"] == name and row[figure]], [figure], method_of, SENTENCES_CONTROL
            )
            for figure in THREE
        }
        for name in names
    }


def sentences(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Linear classifiers − ISDAClassifier: pooled over all problems, then each problem."""
    tables = sentence_tables(rows)
    return {"": _pooled(list(tables.values())), **{name: _sentences_part(own) for name, own in tables.items()}}


def pooled_gain(problems: Sequence[Mapping[str, FigureTable]], rival: str, figure: str) -> Effect | None:
    """The mean difference of a rival to ISDAClassifier over problems; None where it has no such figure."""
    own = [tables[figure].family(figure) for tables in problems]
    there = [family for family in own if rival in family]
    if not there:
        return None
    level = 1 - (1 - LEVEL) / len(problems[0]["error"].family("error"))
    return pooled_effect([f[rival].mean for f in there], [f.errors[rival] for f in there], level)


def _pooled(problems: Sequence[Mapping[str, FigureTable]]) -> list[str]:
    """Random effects over problems; beside the primary figure on how many of them an interval excludes zero."""
    families = {figure: [tables[figure].family(figure) for tables in problems] for figure in THREE}
    rivals = list(families["error"][0])
    lines = [
        f"Δ vs {SENTENCES_CONTROL} pooled over {len(problems)} problems: random-effects meta-analysis (DerSimonian and "
        "Laird; Hartung and Knapp's interval), simultaneous 95% confidence intervals (Bonferroni over "
        f"{len(rivals)} methods), computed separately for each metric; τ is the standard deviation of true differences "
        f"between problems. Positive: {SENTENCES_CONTROL} is better. In brackets: problems whose own interval is above "
        "and below zero.",
        "",
        *head(["method", *(text for title in THREE.values() for text in (f"{title}: Δ", "τ"))]),
    ]
    for rival in rivals:
        cells = [rival]
        for figure, own in families.items():
            effect = pooled_gain(problems, rival, figure)
            if effect is None:
                cells += ["", ""]
                continue
            clear = [family[rival].mean for family in own if rival in family and family[rival].excludes_zero]
            signs = f"({sum(mean > 0 for mean in clear)}, {sum(mean < 0 for mean in clear)})"
            digits = 3 if figure == "nll" else 2
            cells += [f"{difference_text(effect.interval, digits)} {signs}", f"{effect.between:.{digits}f}"]
        lines.append(line(cells))
    return lines


def _sentences_part(tables: Mapping[str, FigureTable]) -> list[str]:
    """One problem; a method without a figure has empty cells."""
    also = f"Computed separately for each metric. Positive: {SENTENCES_CONTROL} is better."
    lines = description(tables["error"], also) + head(["method", *titles(THREE)])
    for method in tables["error"].values:
        cells = [
            figure_cells(table, method, {"nll": 3}) if method in table.values else ["", ""] for table in tables.values()
        ]
        lines.append(line([method, *(cell for pair in cells for cell in pair)]))
    return lines


def by_setting(rows: Sequence[Row]) -> dict[str, list[str]]:
    """A comparison with cross-entropy for each setting, with the strengths that ISDA ended with."""
    parts = {}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == setting]
        table = figure_table(own, list(THREE), method_of, "cross-entropy")
        also = {"strength": "λ at the end", "epochs": "epochs"}
        also = {column: title for column, title in also.items() if column in own[0]}
        lines = description(table, "Negative is better.") + head(["method", *also.values(), *titles(THREE)])
        for method in table.values:
            runs = [row for row in own if row["method"] == method]
            ranges = [_range([float(row[column]) for row in runs]) for column in also]
            lines.append(line([method, *ranges, *figure_cells(table, method, {"nll": 3})]))
        parts[setting] = lines
    return parts


def _range(values: Sequence[float]) -> str:
    """The least and the largest value; one number where they are equal."""
    least, largest = (f"{value:.3g}" for value in (min(values), max(values)))
    return least if least == largest else f"{least} to {largest}"


PAGES: dict[str, Callable[[Sequence[Row]], dict[str, list[str]]]] = {
    "rivals": rivals,
    "sensitivity": sensitivity,
    "camvid": camvid,
    "transfer": transfer,
    "finetune": by_setting,
    "generated": generated,
    "semi_composition": semi_composition,
    "few_images": by_setting,
    "sentences": sentences,
}
"""Parts by the name of a page; each is made from the CSV file of the same name."""


def marked(page: str, part: str = "") -> str:
    """A part of a page, between marks that `refresh` looks for."""
    lines = PAGES[page](read_csv(RESULTS / f"{page}.csv"))[part]
    begin, end = _marks(page, part)
    return "\n".join([begin, "", *lines, "", end])


def _marks(page: str, part: str) -> tuple[str, str]:
    name = f"{page}.csv{': ' if part else ''}{part}"
    return f"<!-- from {name} by benchmarks/analyse.py -->", f"<!-- end of {name} -->"


def from_csv(page: str) -> bool:
    """Whether a page was made from its CSV file: one of an earlier measurement has no marked parts."""
    path = RESULTS / f"{page}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return (RESULTS / f"{page}.csv").exists() and f"<!-- from {page}.csv" in text


def refresh(page: str) -> None:
    """Replace all marked parts of a page."""
    path = RESULTS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    for part in PAGES[page](read_csv(RESULTS / f"{page}.csv")):
        begin, end = map(re.escape, _marks(page, part))
        made = marked(page, part).replace("\\", r"\\")
        text, count = re.subn(f"{begin}.*?{end}", made, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{path} must have one part marked as {part or page}, got {count}")
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Refresh every page that was made from its CSV file."""
    for page in filter(from_csv, PAGES):
        refresh(page)
        print(RESULTS / f"{page}.md")


if __name__ == "__main__":
    main()
