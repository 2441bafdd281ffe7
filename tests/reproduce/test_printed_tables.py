"""The paper's numbers as data: how many there are, what a printed text says, and that our recipes are the paper's."""

import pytest

from isda.lab.engine import TrainingConfig
from isda.lab.reproduce.printed_tables import TABLES, PaperCell, paper_table
from isda.lab.tasks.classification.settings import CIFAR_RECIPES

COUNTS = {
    "table-1": 7 * 10,
    "table-2": 9 * 5,
    "table-3": 9 * 7,
    "table-4": 6 * 6,
    "table-5": 15 * 4,
    "table-6": 8 * 6,
    "table-7": 5 * 3 + 2 * 3,
    "table-8": 6 * 3,
    "table-9": 6 * 5 + 5 * 1 + (2 + 3 + 4 + 3 + 3) + 1,
    "table-11": 9 * 6,
    "table-12": 3 * 6,
}
LEFT_OUT = {"table-1": 4, "table-5": 6, "table-6": 4}
"""Cells that the paper prints as a dash."""


def test_there_are_the_tables_that_have_results_or_settings():
    assert tuple(COUNTS) == TABLES


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_cells_once(name):
    table = paper_table(name)
    places = [(cell.row, cell.column) for cell in table.cells]
    assert len(places) == len(set(places)) == COUNTS[name]
    assert len({cell.source for cell in table.cells}) == COUNTS[name]
    assert sum(cell.printed == "-" for cell in table.cells) == LEFT_OUT.get(name, 0)
    assert all(cell.source.startswith(f"{table.label}: row ") for cell in table.cells)


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_a_number_except_dashes_and_one_schedule_in_words(name):
    words = [cell.printed for cell in paper_table(name).cells if cell.value is None and cell.printed != "-"]
    assert words == (["Cosine learning rate."] if name == "table-9" else [])


@pytest.mark.parametrize("name", TABLES)
def test_names_are_plain(name):
    table = paper_table(name)
    assert all(word.isascii() and word == word.strip() for word in (*table.rows, *table.columns))
    assert table.title.endswith(".")


@pytest.mark.parametrize(
    ("printed", "value", "deviation"),
    [
        ("18.53 ± 0.07%", 18.53, 0.07),
        ("2.36%", 2.36, None),
        ("23.0", 23.0, None),
        ("(1.1)", 1.1, None),
        ("(↑1.26)", 1.26, None),
        ("36.5M", 36.5e6, None),
        ("5.25G", 5.25e9, None),
        ("1e-4", 1e-4, None),
        ("80th", 80.0, None),
        ("-", None, None),
        ("Cosine learning rate.", None, None),
    ],
)
def test_what_a_printed_text_says(printed, value, deviation):
    cell = PaperCell("row", "column", printed, "source")
    assert (cell.value, cell.deviation) == (value, deviation)


def test_a_table_is_read_once_and_answers_by_row_and_column():
    table = paper_table("table-6")
    assert paper_table("table-6") is table
    assert table.columns == (
        *("CIFAR-10 1000", "CIFAR-10 2000", "CIFAR-10 4000"),
        *("CIFAR-100 10000", "CIFAR-100 20000", "SVHN 500"),
    )
    assert table.rows[:2] == ("Pi-model", "Pi-model + ISDA")
    assert table.cell("VAT + ISDA", "CIFAR-100 20000").value == 30.97
    assert table.cell("Pi-model", "SVHN 500").value is None
    assert table.cell("Pi-model", "SVHN 1000") is None


def test_what_the_paper_prints_twice_differently_stays_so():
    places = (("table-2", "Wide-ResNet-28-10", "CIFAR-100 basic"), ("table-8", "Basic", "CIFAR-100"))
    assert [paper_table(name).cell(row, column).printed for name, row, column in places] == [
        "18.53 ± 0.07%",
        "18.58 ± 0.10%",
    ]


def test_an_unknown_table_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"table must be one of table-1, .*, got 'table2'; did you mean 'table-2'\?"):
        paper_table("table2")


@pytest.mark.parametrize("row", paper_table("table-9").rows)
def test_our_recipes_are_those_of_table_9(row):
    values = {cell.column: cell.value for cell in paper_table("table-9").cells if cell.row == row}
    recipe = CIFAR_RECIPES[row.lower()]
    expected = {
        "total epochs": recipe["epochs"],
        "batch size": recipe["batch_size"],
        "weight decay": recipe["weight_decay"],
        "momentum": TrainingConfig.momentum,
        "initial lr": recipe["lr"],
    }
    if "milestones" in recipe.values:
        expected |= {"lr factor": recipe.values.get("lr_factor", TrainingConfig.lr_factor)}
        expected |= {f"lr milestone {number}": epoch for number, epoch in enumerate(recipe["milestones"], 1)}
    else:
        expected |= {"lr schedule": None}
        assert paper_table("table-9").cell(row, "lr schedule").printed.lower().startswith(recipe["schedule"])
    assert values == expected
