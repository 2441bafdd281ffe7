"""Random tables for ``isda classify``: delimiters, encodings, headers, quotes, and values that are absurd.

All hold one problem that any classifier solves, so that a command that succeeds with another number of rows, features
or classes, or that predicts another class, has misread its table.
"""

from __future__ import annotations

import contextlib
import csv
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from commands import Case, Ended, common_problem, run, strict_json

CLASSES = ("low", "middle", "high")
ODD_CLASSES = (
    *(("-1", "0", "1"), ("1", "2", "3"), ("é", "ü", "🙂"), ("=1+1", "+a", "@b"), ("nan", "inf", "none")),
    *(("a,b", 'c"d', "e\nf"), ("True", "False", "maybe"), ("label", "a", "b"), ("\x1b[31mred", "\x07", "plain")),
)
COLUMNS = ("a", "b", "c")
UNLABELLED = 3
ROWS = 24


@dataclass
class Table:
    """A problem and how it is written; every change makes it worse, or only different."""

    chance: random.Random
    names: tuple[str, ...] = CLASSES
    columns: list[str] = field(default_factory=lambda: [*COLUMNS, "label"])
    rows: list[list[str]] = field(default_factory=list)
    """Cells in the order of the columns."""
    truth: list[str] = field(default_factory=list)
    """The class of every row, also of those without a label."""
    header: bool = True
    delimiter: str = ","
    newline: str = "\n"
    quoting: int = csv.QUOTE_MINIMAL
    encoding: str = "utf-8"
    words: list[str] = field(default_factory=list)
    """Of the command."""
    must: str = "succeed"
    """"succeed", "be refused", or "be right", which is one or the other."""
    what: list[str] = field(default_factory=list)
    """What was done to it."""

    def text(self) -> str:
        """The table as it is written."""
        written = io.StringIO()
        writer = csv.writer(written, delimiter=self.delimiter, lineterminator=self.newline, quoting=self.quoting)
        writer.writerows([self.columns, *self.rows] if self.header else self.rows)
        return written.getvalue()

    def weaken(self, must: str) -> None:
        """Note what a change makes of the table: a refusal once allowed, or due, stays so."""
        order = ("succeed", "be right", "be refused")
        self.must = max(self.must, must, key=order.index)


def new_table(chance: random.Random, names: tuple[str, ...] = CLASSES, rows: int = ROWS) -> Table:
    """Each class far from the others along a feature of its own, some rows without a label at the end."""
    table = Table(chance, names)
    for row in range(rows + UNLABELLED):
        kind = row % len(names)
        values = (10.0 * (place == kind) + chance.random() for place in range(len(COLUMNS)))
        table.rows.append([*(f"{value:.6g}" for value in values), names[kind] if row < rows else ""])
        table.truth.append(names[kind])
    return table


# -- changes -----------------------------------------------------------------------------------------------------------


def _delimiter(table: Table) -> None:
    table.delimiter = table.chance.choice(",;\t|: ")
    table.weaken("succeed" if table.delimiter in ",;\t" else "be right")


def _encoding(table: Table) -> None:
    table.encoding = table.chance.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "utf-16-le"])
    table.weaken("succeed" if table.encoding == "utf-8-sig" else "be right")


def _newline(table: Table) -> None:
    table.newline = table.chance.choice(["\r\n", "\r", "\n\n"])
    table.weaken("be right" if table.newline == "\r" else "succeed")


def _quotes(table: Table) -> None:
    table.quoting = csv.QUOTE_ALL


def _no_header(table: Table) -> None:
    table.header = False
    table.weaken("be right")


def _numeric_names(table: Table) -> None:
    """As pandas writes an embedding."""
    table.columns[:3] = table.chance.choice([["0", "1", "2"], ["1", "2", "3"], ["0.5", "1e3", "-1"], ["nan", "1", "x"]])
    table.weaken("be right")


def _duplicate_names(table: Table) -> None:
    # The label keeps its name: a line of numbers alone is a row.
    first = table.chance.randrange(3)
    table.columns[first] = table.columns[table.chance.choice([place for place in range(4) if place != first])]
    table.weaken("be right")


def _odd_names(table: Table) -> None:
    table.columns[table.chance.randrange(3)] = table.chance.choice(["", " ", "é", "a b", "\x1b[31m", "x" * 3000, '"'])
    table.weaken("be right")


def _spaces(table: Table) -> None:
    table.columns = [f" {name} " for name in table.columns]
    table.rows = [[f" {cell} " for cell in row] for row in table.rows]
    table.weaken("be right")


def _label_first(table: Table) -> None:
    table.columns = [table.columns[3], *table.columns[:3]]
    table.rows = [[row[3], *row[:3]] for row in table.rows]


def _label_named(table: Table) -> None:
    table.columns = ["kind" if name == "label" else name for name in table.columns]
    table.words += ["--label", "kind"]


def _ignored(table: Table) -> None:
    table.columns.append("note")
    table.rows = [[*row, table.chance.choice(["x", "", "1"])] for row in table.rows]
    table.words += ["--ignore", "note"]


def _classes(table: Table) -> None:
    odd = table.chance.choice(ODD_CLASSES)
    renamed = dict(zip(table.names, odd, strict=True))
    place = table.columns.index("label") if "label" in table.columns else 3
    for row in table.rows:
        row[place] = renamed.get(row[place], row[place])
    table.names, table.truth = odd, [renamed[name] for name in table.truth]
    table.weaken("be right")


def _cell(table: Table) -> None:
    cell = table.chance.choice(
        [
            "nan",
            "inf",
            "-inf",
            "1e309",
            "",
            "?",
            "1,5",
            "0x10",
            "NULL",
            "-",
            "1e308",
            "-1e308",
            "1e-320",
            "1_0",
            "٣",
            "1\x00",
        ]
    )
    numbers = [place for place, name in enumerate(table.columns) if name in COLUMNS] or [0]
    table.chance.choice(table.rows)[table.chance.choice(numbers)] = cell
    table.weaken("be right" if cell in ("1e308", "-1e308", "1e-320", "1,5", "1_0", "٣") else "be refused")


def _huge_column(table: Table) -> None:
    factor = table.chance.choice([1e300, 1e150, 1e30, 1e-300, 1e-30])
    for row in table.rows:
        with_number = next(place for place, name in enumerate(table.columns) if name not in ("label", "kind", "note"))
        with contextlib.suppress(ValueError):
            row[with_number] = f"{float(row[with_number]) * factor:.6g}"
    table.weaken("be right")


def _ragged(table: Table) -> None:
    if not table.rows:
        return
    row = table.chance.choice(table.rows)
    row.append("1") if table.chance.random() < 0.5 else row.pop()
    table.weaken("be refused")


def _constant(table: Table) -> None:
    place = table.columns.index("b") if "b" in table.columns else 1
    for row in table.rows:
        row[place] = "7"
    table.weaken("be right")


def _few_rows(table: Table) -> None:
    kept = table.chance.choice([0, 1, 2, 3])
    del table.rows[kept:], table.truth[kept:]
    table.weaken("be right")


def _one_class(table: Table) -> None:
    kept = [row for row, name in zip(table.rows, table.truth, strict=True) if name == table.names[0]]
    table.rows, table.truth = kept, [table.names[0]] * len(kept)
    table.weaken("be refused")


CHANGES: tuple[Callable[[Table], None], ...] = (
    *(_delimiter, _encoding, _newline, _quotes, _no_header, _numeric_names, _duplicate_names, _odd_names, _spaces),
    *(_label_first, _label_named, _ignored, _classes, _cell, _huge_column, _ragged, _constant, _few_rows, _one_class),
)


# -- cases -------------------------------------------------------------------------------------------------------------


def tables_case(top: Path, number: int, chance: random.Random, expected: dict[str, Any]) -> Case:
    """One case in the current folder: a table, a table and another to judge by, or a file of embeddings."""
    kind = ("table", "table", "two tables", "embeddings")[number % 4]
    table = _embeddings(chance) if kind == "embeddings" else _written(chance, number // 4)
    file = "table.npz" if kind == "embeddings" else "table.csv"
    words = ["classify", file, *table.words, "--json", "-", "--predictions", "answers.csv"]
    words += ["--lambda-0", "0.5", "--C", "1"] if chance.random() < 0.9 else []
    if kind == "two tables":
        words += ["--test", "test.csv"]
        _write_test(table)
    told = f"classify a {kind}: {', '.join(table.what) or 'as it should be'}"
    ended = run(words)
    problem = common_problem(words, ended)
    scaled = kind == "two tables" and "huge column" in table.what  # the other table is not, and no error says so
    if problem is None and ended.status == 0 and not scaled:
        problem = "accepted" if table.must == "be refused" else _misread(table, ended)
    elif problem is None and table.must == "succeed":
        problem = "refused"
    return Case("classify", told, ended.status, None if problem is None else ended.shown(problem))


def _written(chance: random.Random, number: int) -> Table:
    """A table with one to three changes, every change in turn; now and then without any."""
    table = new_table(chance)
    changes = [CHANGES[number % len(CHANGES)], *chance.sample(CHANGES, chance.choice([0, 0, 1, 2]))]
    # Last what others cannot be made of: no rows, rows of other lengths, names and cells with spaces.
    changes.sort(key=lambda change: change in (_few_rows, _ragged, _spaces))
    for change in dict.fromkeys(changes if chance.random() < 0.95 else []):
        change(table)
        table.what.append(change.__name__.strip("_").replace("_", " "))
    if len(table.what) > 1 and table.must == "succeed":
        table.must = "be right"  # two changes may contradict each other
    Path("table.csv").write_bytes(table.text().encode(table.encoding, "replace"))
    return table


def _write_test(table: Table) -> None:
    """Another table of the same problem: its columns in another order, other names, or one less."""
    chance = table.chance
    test = replace(new_table(chance, table.names), delimiter=table.delimiter, encoding=table.encoding)
    features = [name for name in table.columns if name not in ("label", "kind", "note")][:3]
    test.columns[:3] = features if len(features) == 3 else COLUMNS
    test.columns[3] = "kind" if "kind" in table.columns else "label"
    test.header = table.header
    # Without names, the order of columns is all there is to know of them.
    ways = ["same", "order", "order", "names", "fewer", "more", "unknown class"]
    way = chance.choice(ways if table.header else ["same", "fewer", "unknown class"])
    if way == "order":
        places = chance.sample(range(4), 4)
        test.columns, test.rows = [test.columns[p] for p in places], [[row[p] for p in places] for row in test.rows]
        table.weaken("be right")
    elif way == "names":
        test.columns[:3] = ["x", "y", "z"]
        table.weaken("be refused")
    elif way == "fewer":
        test.columns, test.rows = test.columns[1:], [row[1:] for row in test.rows]
        table.weaken("be refused")
    elif way == "more":
        test.columns, test.rows = ["more", *test.columns], [["1", *row] for row in test.rows]
        table.weaken("be right")
    elif way == "unknown class":
        test.rows[0][3] = "nobody"
        table.weaken("be refused")
    table.what.append(f"tested by {way}")
    if table.must == "succeed" and table.what[:-1]:
        table.must = "be right"
    Path("test.csv").write_bytes(test.text().encode(test.encoding, "replace"))
    table.truth += test.truth


def _misread(table: Table, ended: Ended) -> str | None:
    """Whether a classifier has learnt something else than the table says."""
    record = strict_json(ended.out)
    classes = sorted(name.strip() for name in set(table.truth))
    if sorted(map(str, record["classes"])) != classes:
        return f"classes {record['classes']} instead of {classes}"
    features = len(table.columns) - 1 - ("note" in map(str.strip, table.columns))
    if record["features"] != features:
        return f"{record['features']} features instead of {features}"
    if record["error"] and "cell" not in table.what:  # a changed cell may make another class more likely
        return f"an error of {record['error']} where there need be none"
    with Path("answers.csv").open(newline="", encoding="utf-8") as file:
        given = [row["prediction"].removeprefix("'") for row in csv.DictReader(file)]
    asked = [name for name, row in zip(table.truth, table.rows, strict=False) if "" in (cell.strip() for cell in row)]
    right = [name.strip() for name in table.truth[-UNLABELLED:]]
    if given and given[-UNLABELLED:] != right:
        return f"predicts {given} instead of {right}"
    return None if given or not asked else "no predictions"


# -- files of embeddings -----------------------------------------------------------------------------------------------


def _embeddings(chance: random.Random) -> Table:
    """A file of numpy's arrays of the same problem, with one change of its arrays."""
    table = new_table(chance)
    features = np.array([[float(cell) for cell in row[:3]] for row in table.rows])
    kinds = np.array([table.names.index(name) for name in table.truth])
    labels = np.where(np.arange(len(kinds)) < ROWS, kinds, -1)
    arrays: dict[str, Any] = {"x_train": features, "y_train": labels, "classes": np.array(table.names)}
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "as it should be": ("succeed", {}),
        "float32": ("succeed", {"x_train": features.astype(np.float32)}),
        "names": ("succeed", {"y_train": np.array([row[3] for row in table.rows]), "classes": None}),
        "bytes": ("be right", {"classes": np.array(table.names, "S")}),
        "complex": ("be refused", {"x_train": features.astype(complex)}),
        "text": ("be refused", {"x_train": features.astype(str)}),
        "objects": ("be refused", {"x_train": features.astype(object)}),
        "pickled classes": ("be refused", {"classes": np.array(table.names, object)}),
        "float labels": ("be right", {"y_train": labels.astype(float)}),
        "labels of two columns": ("be refused", {"y_train": np.stack([labels, labels], 1)}),
        "a label too large": ("be refused", {"y_train": np.where(labels == 2, 3, labels)}),
        "a label of -2": ("be refused", {"y_train": np.where(labels == 2, -2, labels)}),
        "unsigned labels": ("be refused", {"y_train": labels.astype(np.uint8)}),
        "one class name twice": ("be refused", {"classes": np.array(["low", "low", "high"])}),
        "an empty class name": ("be refused", {"classes": np.array(["low", "", "high"])}),
        "too few class names": ("be refused", {"classes": np.array(["low", "middle"])}),
        "nan": ("be refused", {"x_train": np.where(features > 10, np.nan, features)}),
        "infinite": ("be refused", {"x_train": np.where(features > 10, np.inf, features)}),
        "huge": ("be right", {"x_train": features * 1e307}),
        "one row less": ("be refused", {"x_train": features[1:]}),
        "flat": ("be refused", {"x_train": features[:, 0]}),
        "deep": ("be refused", {"x_train": features[:, None]}),
        "no features": ("be refused", {"x_train": features[:, :0]}),
        "no rows": ("be refused", {"x_train": features[:0], "y_train": labels[:0]}),
        "no labels": ("be refused", {"y_train": None}),
        "only a test part": ("be refused", {"x_train": None}),
        "a test part of another width": ("be refused", {"x_test": features[:, :2], "y_test": labels}),
        "a test part without labels": ("be refused", {"x_test": features}),
        "a test part": ("succeed", {"x_test": features[:6], "y_test": labels[:6]}),
    }
    name = chance.choice(sorted(changes))
    table.must, changed = changes[name]
    table.what.append(name)
    np.savez("table.npz", **{key: value for key, value in (arrays | changed).items() if value is not None})
    if chance.random() < 0.15:
        content = bytearray(Path("table.npz").read_bytes())
        cut = chance.randrange(len(content))
        Path("table.npz").write_bytes(content[:cut])
        table.what.append(f"cut to {cut} bytes")
        table.must = "be refused"
    return table
