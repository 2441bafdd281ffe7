"""Every number of the paper's tables against its LaTeX, in both directions. ISDA_PAPER names the file; else skipped.

The LaTeX is read here on its own terms: as a grid of cells, each a sequence of numbers and dashes.
"""

import os
import re
from pathlib import Path

import pytest

from isda.lab.reproduce.printed_tables import TABLES, paper_table

PAPER = os.environ.get("ISDA_PAPER")
pytestmark = pytest.mark.skipif(not PAPER, reason="ISDA_PAPER does not name the LaTeX of the paper")

FIRST_ROW = {
    "table-1": "ResNet-50",
    "table-2": "ResNet-32",
    "table-3": "ResNet-32",
    "table-4": "CIFAR-10",
    "table-5": "Large Margin",
    "table-6": r"$\Pi$-model",
    "table-7": "PSPNet",
    "table-8": "Basic",
    "table-9": "ResNet",
    "table-11": "Faster-RCNN-FPN",
    "table-12": "Mask-RCNN-FPN",
}
"""What the first cell below the heading says."""
NAMES = {"table-4": 2, "table-7": 2, "table-11": 2, "table-12": 2}
"""How many cells of a row are names, where it is not one."""

NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+)?(?:e-\d+)?|(?<![-\w])--?(?![-\w])")


def unwrapped(text):
    """The text without citations and commands that only say how it looks."""
    text = re.sub(r"\\(?:cite|cline|label)\{[^}]*\}|\\hline", " ", text)
    text = re.sub(r"\\multirow\{\d+\}\{\*\}\{((?:[^{}]|\{[^}]*\})*)\}", r"\1", text)
    text = re.sub(r"\\multirowcell\{\d+\}\{(.*?)\}", lambda found: found[1].replace("\\\\", " "), text)
    return re.sub(r"\\textnormal|\\textbf", "", text).replace(r"\%", "%")


def parsed(name):
    """The rows of a table as lists of LaTeX cells: its heading, and what is below."""
    text = Path(PAPER).read_text(encoding="utf-8")
    (table,) = (
        part
        for part in re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", text, re.DOTALL)
        if rf"\label{{{paper_table(name).label}}}" in part
    )
    inside = re.search(r"\\begin\{tabular\}\{[^}]*\}(.*)\\end\{tabular\}", table, re.DOTALL)[1]
    lines = re.split(r"\\\\", unwrapped(inside))
    rows = [[cell.strip() for cell in line.split("&")] for line in lines if line.strip()]
    first = next(number for number, row in enumerate(rows) if row[0].startswith(FIRST_ROW[name]))
    return rows[:first], rows[first:]


def figures(cell):
    """The numbers and dashes of one LaTeX cell, in their order, with a deviation as part of its number."""
    cell = re.sub(r"[${}]|\\ |\\uparrow", "", cell).replace(r"\pm", "±")
    return [
        "±".join("-" if "-" in part and "e" not in part else part for part in NUMBER.findall(whole))
        for whole in re.findall(r"\S+\s*±\s*\S+|\S+", re.sub(r"[/_(),]", " ", cell))
        if NUMBER.search(whole)
    ]


def words(text):
    """The words of a name or of a heading, as letters and digits, without regard to their order."""
    text = (
        re.sub(r"(?<=\d),(?=\d)|[${}\\]", "", text.replace(r"\Pi", "Pi").replace("l_r", "lr")).replace("_", "").lower()
    )
    return {WRITTEN_OUT.get(word, word) for word in re.findall(r"[a-z0-9-]+", text)} - {"-"}


WRITTEN_OUT = {"params": "parameters", "ra": "randaugment", "aa": "autoaugment", "shake": "shake-shake"}
"""Words that our names write otherwise than the paper."""
IN_HEADINGS_ONLY = {"in", "error", "rates", "miou", "labeled", "samples", "dataset", "networks"}
IN_OUR_NAMES_ONLY = {"improvement", "factor", "milestone"}
"""For numbers that share a cell with others."""


def expected(name):
    """By place, what the LaTeX prints there: numbers, dashes, or words where there is neither."""
    places = {}
    for r, row in enumerate(parsed(name)[1], 1):
        for c, cell in list(enumerate(row, 1))[NAMES.get(name, 1) :]:
            found = figures(cell) or [cell]
            for k, figure in enumerate(found, 1):
                number = f", number {k}" if len(found) > 1 else ""
                places[f"{paper_table(name).label}: row {r}, column {c}{number}"] = figure
    return places


def place(cell):
    """The row and the column of the LaTeX in which a cell stands, from 0."""
    row, column = re.search(r"row (\d+), column (\d+)", cell.source).groups()
    return int(row) - 1, int(column) - 1


def headings(rows):
    """By LaTeX column, the words above it."""
    columns = {}
    for row in rows:
        c = 0
        for cell in row:
            wide = re.fullmatch(r"\\multicolumn\{(\d)\}\{[^}]*\}\{(.*)\}", cell, re.DOTALL)
            for _ in range(int(wide[1]) if wide else 1):
                columns[c] = columns.get(c, set()) | words(wide[2] if wide else cell)
                c += 1
    return columns


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_the_text_is_in_the_data_and_no_other(name):
    printed = {cell.source: (figures(cell.printed) or [cell.printed])[0] for cell in paper_table(name).cells}
    text = expected(name)
    assert printed == text
    assert len(text) == len(paper_table(name).cells)


@pytest.mark.parametrize("name", TABLES)
def test_signs_and_units_are_those_of_the_text(name):
    printed = {}
    for cell in paper_table(name).cells:
        printed[place(cell)] = printed.get(place(cell), "") + cell.printed.replace(" ", "")
    rows = parsed(name)[1]
    for (row, column), ours in printed.items():
        text = rows[row][column].replace(r"\pm", "±").replace(r"\uparrow", "↑").replace("^{th}", "th")
        text = re.sub(r"Multiplied by| in | and | epoch\.|, ", " ", text).replace("--", "-")
        assert ours == re.sub(r"[\s${}\\/_]", "", text) or ours == text


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_columns_have_the_names_of_the_text(name):
    heading, rows = parsed(name)
    above, group = headings(heading), [""] * len(rows)
    for number, row in enumerate(rows):
        group[number] = row[0] or group[number - 1]
    for cell in paper_table(name).cells:
        row, column = place(cell)
        of_row, of_column = {
            "table-4": (rows[row][1], words(group[row])),
            "table-11": (f"{group[row]} {rows[row][1]}", set()),
            "table-12": (f"{group[row]} {rows[row][1]}", set()),
        }.get(name, (rows[row][0], set()))
        assert words(cell.row) == words(of_row)
        ours = {word for word in words(cell.column) - IN_OUR_NAMES_ONLY if not re.fullmatch(r"[1-4]", word)}
        theirs = (above[column] | of_column) - IN_HEADINGS_ONLY
        if "top-1" in theirs:  # One cell for both errors.
            theirs = theirs - {"top-1", "top-5"} | ours & {"top-1", "top-5"}
        if theirs & {"absolute", "relative"}:  # Of the theoretical cost, as opposed to the wall time.
            theirs = theirs - {"theoretical"}
        if ours == {"lr"}:  # Parts of the schedule.
            ours = {"lr", "schedule"}
        assert ours == theirs, cell
