"""Axes, curves and the drawn charts: positions against the numbers they stand for."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isda.lab.engine import find_runs
from isda.lab.report.charts import (
    Axis,
    Chart,
    Curves,
    Line,
    classes,
    curves,
    dash,
    draw_forest,
    marker,
    round_ticks,
    tick_text,
)
from isda.lab.report.summary import summarise


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e5), st.integers(2, 10))
def test_ticks_are_round_evenly_spaced_and_inside(low, length, count):
    ticks = round_ticks(low, low + length, count)
    assert 1 <= len(ticks) <= count + 1
    assert all(low - 1e-6 * length <= tick <= low + length * (1 + 1e-6) for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    for step in steps:
        assert step == pytest.approx(steps[0], rel=1e-6)
        assert f"{step:.3e}"[:5] in ("1.000", "2.000", "5.000")


def test_ticks_have_no_rounding_noise():
    assert round_ticks(0, 0.5, 5) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_ticks_need_a_range():
    with pytest.raises(ValueError, match=r"low must be below high, got 1\.0 and 1\.0"):
        round_ticks(1.0, 1.0, 4)


@given(st.floats(1e-4, 1), st.floats(50, 1e6))
def test_logarithmic_ticks_lie_inside_and_do_not_crowd(low, factor):
    ticks = Axis(low, low * factor, 0, 1, logarithmic=True).ticks(5)
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= low * factor for tick in ticks)


def test_an_axis_maps_its_ends_to_its_ends():
    assert [Axis(2, 4, 100, 50)(value) for value in (2, 3, 4)] == [100, 75, 50]
    assert Axis(1, 100, 0, 10, logarithmic=True)(10) == pytest.approx(5)


@pytest.mark.parametrize(("value", "text"), [(20.0, "20"), (-0.5, "−0.5"), (0.05, "0.05"), (0.0, "0")])
def test_ticks_are_written_short(value, text):
    assert tick_text(value) == text


def test_no_two_of_many_methods_look_the_same():
    looks = {(classes(style).split()[0], dash(style), marker(style, 0, 0)) for style in range(36)}
    assert len(looks) == 36
    for style in range(6):
        # Without colour, the dash and the marker still tell them apart.
        assert dash(style) not in [dash(other) for other in range(style)]


def test_the_mean_is_over_finished_runs(runs_folder):
    (comparison,) = summarise(find_runs([runs_folder]))
    tilted = next(drawn for drawn in curves(comparison, "test/error") if drawn.label == "isda-tilted")
    assert [line.finished for line in tilted.lines] == [True, True, True, False]
    finished = [dict(line.points) for line in tilted.lines[:3]]
    assert dict(tilted.mean)[5] == pytest.approx(sum(points[5] for points in finished) / 3)
    assert [epoch for epoch, _ in tilted.mean] == list(range(1, 21))


def test_without_a_finished_run_the_mean_ends_with_the_shortest(make_run, tmp_path):
    make_run(tmp_path / "a", seed=0, stop=4)
    make_run(tmp_path / "b", seed=1, stop=9)
    (drawn,) = curves(*summarise(find_runs([tmp_path])), "test/error")
    assert [epoch for epoch, _ in drawn.mean] == [1, 2, 3, 4]


def test_methods_that_did_not_record_a_metric_are_left_out(runs_folder):
    (comparison,) = summarise(find_runs([runs_folder]))
    assert [drawn.label for drawn in curves(comparison, "strength")] == ["isda", "isda-tilted"]


def _chart(points, **changes):
    drawn = Curves("a", (Line(0, points, True),), points)
    return Chart("title", "description", "%", [drawn], {"a": 0}, len(points), **changes)


def test_a_drawn_line_passes_through_its_values():
    chart = _chart([(1, 10.0), (2, 20.0), (3, 30.0)])
    path = re.search(r'class="mean" d="M([^"]*)"', chart.draw("x", 360, 260))[1]
    (x1, y1), (x2, y2), (x3, y3) = (map(float, pair.split(",")) for pair in path.split("L"))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert y3 < y1
    assert (x1, x3) == (46, 346)


def test_steep_first_epochs_leave_the_chart_and_it_knows():
    falling = [(epoch, 90.0 if epoch == 1 else 30 - epoch / 10) for epoch in range(1, 21)]
    assert _chart(falling).cut
    assert not _chart(falling, logarithmic=True).cut
    assert not _chart([(epoch, epoch / 2) for epoch in range(1, 21)]).cut


def test_where_higher_is_better_the_first_epochs_may_leave_the_chart_at_the_bottom():
    rising = [(epoch, 0.05 if epoch == 1 else 0.7 + epoch / 1000) for epoch in range(1, 21)]
    assert _chart(rising, rising=True).cut
    assert not _chart(rising).cut
    path = re.search(r'class="mean" d="M([^"]*)"', _chart(rising, rising=True).draw("x", 360, 260))[1]
    heights = [float(pair.split(",")[1]) for pair in path.split("L")]
    # The first value lies below the axis at 226, and the others use what is above it.
    assert heights[0] > 226 > heights[3]
    assert heights[3] - heights[-1] > 0.8 * (226 - 26)


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_values_that_are_all_the_same_can_be_drawn(value):
    text = _chart([(1, value), (2, value)]).draw("x", 360, 260)
    assert "nan" not in text
    assert "inf" not in text


def test_a_run_of_one_epoch_can_be_drawn():
    assert "nan" not in _chart([(1, 5.0)]).draw("x", 360, 260)


def test_the_forest_has_a_dot_per_seed_and_intervals_where_they_belong(make_run, tmp_path):
    for seed, (base, ours) in enumerate([(30, 29), (31, 29.5), (33, 32.5)]):
        make_run(tmp_path / f"c{seed}", "cross-entropy", seed, error=base)
        make_run(tmp_path / f"i{seed}", "isda", seed, error=ours)
    (comparison,) = summarise(find_runs([tmp_path]))
    text = draw_forest(comparison, {"cross-entropy": 0, "isda": 1}, "f", 360)
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', text)]
    zero = float(re.search(r'class="zero" x1="([\d.]+)"', text)[1])
    assert len(dots) == 3
    # -1, -1.5 and -0.5 points: twice and three times as far from zero as the last.
    assert (zero - dots[0]) / (zero - dots[2]) == pytest.approx(2, rel=0.02)
    assert (zero - dots[1]) / (zero - dots[2]) == pytest.approx(3, rel=0.02)
    low, high = map(float, re.search(r'class="interval" d="M([\d.]+),.*H([\d.]+)M', text).groups())
    mean, half_width = comparison.methods[1].difference
    unit = (zero - dots[0]) / 1.0
    assert zero - (low + high) / 2 == pytest.approx(-mean * unit, abs=0.2)
    assert (high - low) / 2 == pytest.approx(half_width * unit, abs=0.2)
    assert "seed 1: −1.50" in text


def test_a_forest_without_any_difference_from_zero_can_be_drawn(make_run, tmp_path):
    make_run(tmp_path / "a", "cross-entropy", error=30)
    make_run(tmp_path / "b", "a" * 200, error=30)
    (comparison,) = summarise(find_runs([tmp_path]))
    text = draw_forest(comparison, {"cross-entropy": 0, "a" * 200: 1}, "f", 360)
    assert "nan" not in text
    assert "aaa…" in text
