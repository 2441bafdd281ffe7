"""Generated pages and tables are current, and the options they name exist."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import cost_tables  # noqa: E402
import deviations  # noqa: E402
import scale_table  # noqa: E402
from cost_counter import count, make_step  # noqa: E402
from cost_model import FLOPS, Step  # noqa: E402
from isda.lab.cli.main import GROUPS  # noqa: E402
from isda.lab.reproduce.registry import EXPERIMENTS  # noqa: E402
from isda.lab.reproduce.tables import LOSSES  # noqa: E402
from small_runs import isda  # noqa: E402
from steps import Shape  # noqa: E402

ROWS = [line.split(" | ") for line in deviations.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
WITHOUT_COMMAND = ("train", "reproduce", "segment train", "visualize")
"""Commands whose options a row may name without the command."""


def test_the_table_of_costs_is_what_the_registry_takes():
    text = scale_table.PAGE.read_text(encoding="utf-8")
    assert "| table-6 | 1,276 |" in text
    assert scale_table.written(text) == text, "python website/scale_table.py writes it"


def test_the_tables_of_the_cost_of_a_step_are_those_of_the_formulas_and_measurements():
    text = cost_tables.PAGE.read_text(encoding="utf-8")
    assert text.count("| 10 K C A |") == 1
    assert cost_tables.written(text) == text, "python website/cost_tables.py writes it"


@pytest.mark.parametrize(("covariance", "way"), FLOPS)
def test_formulas_of_the_cost_of_a_step_are_what_is_counted(covariance, way):
    n, c, a = (120, 12, 48) if way == "tables" else (24, 120, 96)
    if (covariance, way) == ("low_rank", "rows"):
        n, c, a = 100, 1000, 96
    step = Step(covariance, "jensen" if way == "jensen" else "tilted", n, c, a, rank=4)
    assert step.way == way
    settings = {"rank": 4} if covariance == "low_rank" else {}
    counted, predicted = count(make_step(step.bound, Shape(covariance, n, c, a), **settings)), step.work()
    shrinks = (covariance, way) == ("low_rank", "tables")  # which the formula leaves out
    assert counted.flops == pytest.approx(predicted.flops, rel=0.5 if shrinks else 0.01)
    assert counted.bytes == pytest.approx(predicted.bytes, rel=0.5)
    assert counted.launches == pytest.approx(predicted.launches, rel=0.2)


@cache
def options_of(command: str) -> set[str]:
    """The options in the help of a command."""
    out, err, _ = isda(*command.split(), "--help-all")
    return set(re.findall(r"--[\w-]+", out + err))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_options_of_deviations_exist(row):
    names = set()
    for code in re.findall(r"`([^`]+)`", row[-1]):
        words = code.split()
        if words[0] == "isda":
            command = " ".join(words[1:3]) if words[1] in GROUPS else words[1]
            names = options_of(command)
        for option in re.findall(r"--[\w-]+", code):
            known = names or set().union(*map(options_of, WITHOUT_COMMAND))
            assert option in known, f"{option} in {code}"


def test_deviations_have_a_row_for_every_figure_and_loss_and_what_the_paper_leaves_open():
    subjects = [row[0] for row in ROWS]
    figures = {number for subject in subjects if "Figure" in subject for number in re.findall(r"\d+", subject)}
    assert {name.removeprefix("figure-") for name in EXPERIMENTS if name.startswith("figure")} <= figures
    for name in (*LOSSES, "WGAN", "RandAugment's N and M", "Sliding windows", "What a batch is made of"):
        assert any(subject.startswith(f"| {name}") for subject in subjects), name
