"""Searches on the page and in the terminal: curves, maps and scatters of what was tried, from files nobody trusts."""

import io
import json
import re

import pytest
from isda.lab.engine.digests import with_digest
from isda.lab.engine.tuning.records import MethodSearchRecord, SearchRecord, find_searches, read_search, write_search
from isda.lab.engine.tuning.search_space import SearchedSetting, Trial, grid_points
from rich.console import Console

from isda.lab.engine import Figure, find_runs
from isda.lab.report.page import render_report, write_report
from isda.lab.report.terminal_tables import search_table

ERROR = Figure(name="error", metric="held-out/error", title="held-out error", unit="%")
STRENGTH = SearchedSetting(name="lambda_0", of_method=True, values=(0.5, 1.0, 2.0))
RATE = SearchedSetting(name="lr", of_method=False, values=(0.05, 0.1))
WORD = SearchedSetting(name="bound", of_method=True, values=("jensen", "tilted"))


def method(*searched, name="isda", figures=None, notes=(), seeds=("100",), **changes):
    points = grid_points(searched) if searched else []
    figures = figures or [10.0 - number for number in range(len(points))]
    trials = [
        Trial(
            number=number,
            point=point,
            why="grid",
            values={} if figure is None else {seed: figure + int(seed) / 1000 for seed in seeds},
            problem="seed 100: the loss became infinite" if figure is None else "",
        )
        for number, (point, figure) in enumerate(zip(points, figures, strict=True))
    ]
    chosen = min((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value, default=None)
    settings = {
        "method": name,
        "held_out": "259 of 1,297 training images",
        "searched": searched,
        "trials": tuple(trials),
        "chosen": chosen and chosen.point,
        "chosen_method": name,
        "notes": notes,
    }
    return MethodSearchRecord(**settings | changes)


def a_search(*methods, **changes):
    settings = {"data": "digits", "network": "fast-cnn", "scale": "custom", "epochs": 2, "figure": ERROR}
    settings |= {"sampler": "grid", "seeds": (100,), "finished": True, "methods": methods}
    return SearchRecord(**settings | changes)


def page(*searches, runs=(), folder=None):
    return render_report(runs, folder, None, "isda report", searches)


def printed(search):
    console = Console(width=140, file=io.StringIO())
    console.print(search_table(search))
    return " ".join(console.file.getvalue().split())


def test_a_search_is_written_and_read_back(tmp_path):
    search = a_search(method(STRENGTH, RATE), method(name="cross-entropy", chosen_method="cross-entropy"))
    write_search(search, tmp_path)
    read = read_search(tmp_path)
    assert (read.methods, read.figure, read.seeds, read.finished) == (search.methods, ERROR, (100,), True)
    assert read.folder == tmp_path
    assert [one.folder for one in find_searches([tmp_path])] == [tmp_path]


def test_one_setting_is_a_curve_with_the_choice_ringed_and_a_logarithmic_axis(tmp_path):
    text = page(a_search(method(STRENGTH, figures=[3.0, 1.0, 2.0])))
    assert "held-out error of isda against lambda_0" in text
    assert text.count('class="stopped chosen"') == 2  # for a desk and for a phone
    assert "Logarithmic axis." in text
    assert "isda: lambda_0=1 after 3 trials, inside of what was tried." in text
    desk = re.search(r'<svg[^>]*id="s1-m1-1".*?</svg>', text, re.DOTALL)[0]
    places = [float(x) for x in re.findall(r'class="tick across" x="([\d.]+)"', desk)]
    assert len(places) == 3
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_even_differences_get_an_even_axis():
    even = SearchedSetting(name="smoothing", of_method=True, values=(0.0, 0.1, 0.2))
    assert "Logarithmic axis." not in page(a_search(method(even)))


def test_two_settings_are_a_map_with_the_choice_framed():
    text = page(a_search(method(STRENGTH, RATE)))
    assert text.count('class="interval chosen"') == 2
    assert text.count('class="bar"') == 2 * 6
    assert "over lambda_0 and lr" in text


def test_other_searches_are_scatters_of_each_setting():
    text = page(a_search(method(STRENGTH, RATE, WORD)))
    assert all(f"against {name}" in text for name in ("lambda_0", "lr", "bound"))
    drawn = SearchedSetting(name="lambda_0", of_method=True, low=0.01, high=10.0)
    trials = tuple(
        Trial(number=n, point={"lambda_0": 0.01 * 3**n}, why="sampled", values={"100": n / 3}) for n in range(6)
    )
    sampled = method(STRENGTH, searched=(drawn,), trials=trials, chosen=trials[0].point)
    text = page(a_search(sampled, sampler="tpe"))
    assert text.count('class="marker"') == 12
    assert "Logarithmic axis." in text
    assert 'class="seed"' not in text


def test_what_diverged_and_what_lies_at_the_edge_is_said():
    notes = ("lambda_0=0.5 is the smallest value tried",)
    search = a_search(method(STRENGTH, figures=[1.0, 2.0, None], notes=notes), finished=False)
    for text in (page(search), printed(search)):
        assert "lambda_0=0.5 after 3 trials, lambda_0=0.5 is the smallest value tried." in text
        assert "diverged" in text
        assert "The search is not finished." in text
    assert "crosses where a run diverged" in page(search)


def test_nothing_to_choose_nothing_tried_and_nothing_left_are_shown_too():
    lost = method(STRENGTH, figures=[None] * 3)
    search = a_search(method(name="cross-entropy"), method(STRENGTH, trials=(), chosen=None), lost)
    text = page(search)
    assert "cross-entropy: nothing to choose." in text
    assert "isda: no choice after 0 trials." in text
    assert "isda: no choice after 3 trials." in text
    assert "cross-entropy: nothing to choose." in printed(search)


def test_figures_over_seeds_have_their_spread(tmp_path):
    search = a_search(method(STRENGTH, seeds=("0", "1000")), seeds=(0, 1000))
    assert "10.50 ± 0.71" in printed(search)
    assert "small dots for its seeds" in page(search)


def test_a_page_has_searches_beside_comparisons_and_names_both(runs_folder, tmp_path):
    runs = find_runs([runs_folder])
    write_report(runs, tmp_path / "page.html", searches=[a_search(method(STRENGTH), folder=tmp_path / "tuned")])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<a href="#c1">' in text
    assert '<a href="#s1">Search: digits with fast-cnn</a>' in text
    assert "tuned/search" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_names_from_files_are_harmless():
    evil = "<script>alert(1)</script>"
    search = a_search(method(SearchedSetting(name=evil, of_method=True, values=(evil, "b")), name=evil), data=evil)
    assert evil not in page(search)
    assert "\x1b" not in printed(a_search(method(STRENGTH, name="\x1b[31mred")))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "must be of format 1, got 2"),
        ({"methods": [{}]}, "does not describe a search"),
        ({"methods": 3}, "does not describe a search"),
        ({"figure": {"name": "error"}}, "does not describe a search"),
        ({"epochs": None}, "does not describe a search"),
    ],
)
def test_a_file_that_describes_no_search_is_named(change, sentence, tmp_path):
    written = a_search(method(STRENGTH)).as_json() | change
    (tmp_path / "tune.json").write_text(json.dumps(with_digest(written)))
    with pytest.raises(ValueError, match=rf"tune\.json.*{sentence}"):
        read_search(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"point": {"lambda_0": "x"}},
        {"point": {"other": 1.0}},
        {"point": {"lambda_0": float("nan")}},
        {"values": {"100": None}},
        {"values": {"100": float("inf")}},
    ],
)
def test_a_trial_that_makes_no_sense_is_named(change, tmp_path):
    written = a_search(method(STRENGTH)).as_json()
    written["methods"][0]["trials"][1] |= change
    (tmp_path / "tune.json").write_text(json.dumps(with_digest(written)))
    with pytest.raises(ValueError, match=r"does not describe a search.*trial 1 must"):
        read_search(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    write_search(a_search(method(STRENGTH)), tmp_path)
    file = tmp_path / "tune.json"
    file.write_text(file.read_text().replace("fast-cnn", "slow-cnn"))
    with pytest.raises(ValueError, match=r"tune\.json was changed after it was written"):
        read_search(tmp_path)


@pytest.mark.parametrize("width", [1200, 375])
def test_charts_of_searches_fit_the_page(open_page, width, tmp_path):
    diverged = method(STRENGTH, figures=[3.0, None, 2.0])
    search = a_search(diverged, method(STRENGTH, RATE), method(STRENGTH, RATE, WORD))
    write_report([], tmp_path / "page.html", searches=[search])
    shown = open_page(tmp_path / "page.html", width)
    assert shown.errors == []
    sizes = shown.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert sizes[0] <= sizes[1]
    assert shown.screenshot("svg.trials").width > 0.6 * min(width, 800)
    assert shown.screenshot("svg.heat").width > 0.6 * min(width, 800)
