"""Runs of a task that is nowhere installed, whose figure is a bare number of which more is better: mean IoU."""

import re

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from isda.lab.engine import Figure, find_runs
from isda.lab.report.charts import draw_forest
from isda.lab.report.page import render_report
from isda.lab.report.summary import summarise
from isda.lab.report.terminal_tables import comparison_table
from isda.lab.report.wording import caption, findings
from run_folders import STRANGERS, write_strangers_run

BASE, OURS = (0.7121, 0.718, 0.7255), (0.7162, 0.7233, 0.7301)


@pytest.fixture
def comparison(strangers_folder):
    (found,) = summarise(find_runs([strangers_folder]))
    return found


def test_differences_are_paired_to_the_baseline_that_the_task_names(comparison):
    assert [method.label for method in comparison.methods] == ["pixel-cross-entropy", "soft"]
    low, high = stats.ttest_rel(OURS, BASE).confidence_interval(0.95)
    mean, half_width = comparison.methods[1].difference
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_the_table_has_no_unit_and_as_many_digits_as_the_figure(comparison):
    console = Console(width=140, record=True)
    console.print(comparison_table(comparison))
    text = console.export_text()
    assert re.search(r"method +seeds +mean IoU +difference *\n", text)
    assert "0.7232 ± 0.0070" in text
    assert "+0.0047 ± 0.0015" in text
    assert "%" not in text.replace("95%", "")


def test_words_say_that_more_is_better_and_call_nothing_points(comparison):
    assert caption(comparison) == (
        "Mean IoU, mean of the last 2 of 20 epochs; mean ± standard deviation over seeds 0 to 2. Difference: Δ vs "
        "pixel-cross-entropy, 95% confidence interval (Student, 3 paired seeds); positive is better."
    )
    assert findings(comparison) == [
        "soft has 0.0047 higher mean IoU than pixel-cross-entropy (95% interval 0.0032 to 0.0062, 3 paired seeds)."
    ]


def test_the_best_of_many_is_the_highest(tmp_path):
    for number, name in enumerate(("pixel-cross-entropy", "a", "b", "c", "d")):
        for seed in (0, 1):
            write_strangers_run(tmp_path / f"{name}-{seed}", name, seed, 0.5 + (0.1 * seed + number) / 100)
    (many,) = summarise(find_runs([tmp_path]))
    (sentence,) = findings(many)
    assert sentence.startswith("Of 4 methods, d comes out highest. d has 0.0400 higher mean IoU than ")


def test_isda_s_part_has_the_figure_s_digits_too(tmp_path):
    for number, name in enumerate(("pixel-cross-entropy", "soft", "soft+isda")):
        for seed in range(4):
            write_strangers_run(tmp_path / f"{name}-{seed}", name, seed, 0.5 + number * (number + seed) / 1000)
    runs = find_runs([tmp_path])
    values = np.array([[number * (number + seed) / 1000 for seed in range(4)] for number in range(3)])
    residuals = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    half = stats.t.ppf(0.975, df=6) * np.sqrt((residuals**2).sum() / 6 * 2 / 4)
    part = f"+{np.mean(values[2] - values[1]):.4f} ± {half:.4f}"
    console = Console(width=140, record=True)
    console.print(comparison_table(*summarise(runs)))
    assert part in console.export_text()
    assert f"{part}</td>" in render_report(runs, tmp_path, None, "a command")


def test_what_cannot_be_told_apart_and_one_seed_have_words_of_their_own(tmp_path):
    for name, reached in {"pixel-cross-entropy": (0.5, 0.6), "soft": (0.6, 0.5), "single": (0.5123,)}.items():
        for seed, miou in enumerate(reached):
            write_strangers_run(tmp_path / f"{name}-{seed}", name, seed, miou)
    single, soft = findings(*summarise(find_runs([tmp_path])))
    assert single.startswith("On 1 paired seed, single differs from pixel-cross-entropy by +0.0123 mean IoU; ")
    assert soft.startswith("On 2 paired seeds, soft differs from pixel-cross-entropy by +0.0000 mean IoU; too few ")


def test_the_forest_grows_to_the_right_where_the_method_is_better(comparison):
    text = draw_forest(comparison, {"pixel-cross-entropy": 0, "soft": 1}, "f", 800)
    assert "← lower mean IoU" in text
    assert "higher mean IoU →" in text
    assert "Differences in mean IoU: soft +0.0047 ± 0.0015." in text
    assert "seed 1: +0.0053" in text
    zero = float(re.search(r'class="zero" x1="([\d.]+)"', text)[1])
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', text)]
    # 0.0041, 0.0053 and 0.0046 from zero.
    assert [(dot - zero) / (dots[0] - zero) for dot in dots] == pytest.approx([1, 53 / 41, 46 / 41], rel=0.01)


def test_the_page_shows_the_task_s_figures_curves_and_settings(strangers_folder):
    text = render_report(find_runs([strangers_folder]), strangers_folder, None, "a command")
    for words in (
        "soft has 0.0047 higher mean IoU than pixel-cross-entropy",
        '<th scope="col" class="n">Mean IoU</th><th scope="col" class="n">Difference</th>',
        '<td class="n clear">+0.0047 ± 0.0015</td>',
        "Differences in mean IoU to pixel-cross-entropy on the same seed. Small dots",
        "Mean IoU over the epochs: lines with markers are means over seeds, bands reach from the lowest to the highest",
        "Some of the first epochs lie below the axis.",
        "Boundary F1 over the epochs",
        '<th scope="col" class="n">Latency, ms</th>',
        '<td class="n">12.5 ± 0.0</td>',
        "<code>crop</code></th><td>512</td>",
    ):
        assert words in text
    for absent in ("error", "ISDA", "training images", "percentage"):
        assert absent not in re.sub(r"<style>.*</style>|<script>.*</script>", "", text, flags=re.DOTALL)


def test_json_names_the_figure_as_its_task_does(comparison):
    record = comparison.as_json()
    assert record["figures"][0]["name"] == "miou"
    assert record["figures"][0]["lower_is_better"] is False
    assert (record["task"], record["crop"], record["baseline"]) == (
        "strangers-segmentation",
        512,
        "pixel-cross-entropy",
    )
    ours = record["methods"][1]
    assert ours["mious"] == {"0": 0.7162, "1": 0.7233, "2": 0.7301}
    assert ours["miou_mean"] == pytest.approx(sum(OURS) / 3)
    assert ours["miou_std"] == pytest.approx(stats.tstd(OURS))
    assert ours["difference_mean"] == pytest.approx((sum(OURS) - sum(BASE)) / 3)
    assert ours["differences"] == pytest.approx({"0": 0.0041, "1": 0.0053, "2": 0.0046})


def test_a_setting_cannot_take_the_place_of_what_the_report_says(tmp_path):
    taken = {"title": "mine", "baseline": "mine", "methods": "mine"}
    write_strangers_run(tmp_path / "a", "soft", 0, 0.5, **taken)
    record = summarise(find_runs([tmp_path]))[0].as_json()
    assert (record["title"], record["baseline"]) == ("cityscapes with deeplab", "soft")
    assert record["methods"][0]["label"] == "soft"


def test_runs_whose_figures_mean_something_else_are_not_compared(tmp_path):
    renamed = Figure(name="miou", metric="validation/miou", title="IoU of the rare classes", lower_is_better=False)
    write_strangers_run(tmp_path / "a", "soft", 0, 0.5)
    write_strangers_run(tmp_path / "b", "hard", 0, 0.4, figures=(renamed, *STRANGERS["figures"][1:]))
    assert [len(one.methods) for one in summarise(find_runs([tmp_path]))] == [1, 1]
