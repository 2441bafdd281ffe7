"""What runs share and in what they differ, and how values are written."""

import pytest

from isda.lab.report.html_tables import differing, shared, value_text, values_text


def test_settings_are_either_shared_or_differ():
    first, second = {"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": 4}
    assert shared([first, second]) == {"a": 1}
    assert differing([first, second]) == ["b", "c", "d"]
    assert shared([first]) == first


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        ([], "none"),
        (True, "yes"),
        (0, "0"),
        (0.3054626910517484, "0.305463"),
        ([8, 12], "8, 12"),
        ([str(number) for number in range(100)], "0, 1, 2, 3, … (100 in all)"),
        ("crop-flip", "crop-flip"),
    ],
)
def test_values_are_written_for_people(value, text):
    assert value_text(value) == text


def test_values_of_several_runs_are_named_once_each():
    assert values_text([0.5, 0.5, 1.0]) == "0.5, 1"
    assert values_text([]) == "–"
