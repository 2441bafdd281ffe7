"""Which runs are compared, what is averaged, and what is found: in words, in the terminal, as JSON and from Python."""

import json
import math
import re

import pytest
from rich.console import Console
from scipy import stats

from isda.lab.engine import Figure, compare, find_runs
from isda.lab.report import load, summarise
from isda.lab.report.comparison import labels
from isda.lab.report.statistics import many_to_one
from parabola import Parabola, ParabolaSettings
from small_runs import small_config

BASE = {0: 30.0, 1: 31.5, 2: 30.7, 3: 32.2}


@pytest.fixture
def compared(tmp_path, make_run):
    """Write runs with given errors, {method: {seed: error, or None for an unfinished run}}, and compare them."""

    def write(errors, **changes):
        for method, by_seed in errors.items():
            for seed, error in by_seed.items():
                stop = 5 if error is None else None
                make_run(tmp_path / "runs" / method / f"seed-{seed}", method, seed, stop, error=error, **changes)
        return load(tmp_path / "runs")

    return write


def shifted(*shifts):
    """Errors of the seeds of BASE that differ from it by so much."""
    return {seed: value + shift for (seed, value), shift in zip(BASE.items(), shifts, strict=True)}


def terminal(table):
    console = Console(width=140, record=True)
    console.print(table.rich())
    return console.export_text()


def test_errors_are_averaged_over_seeds_and_differences_over_common_seeds(compared):
    errors = {"isda": {0: 30.0, 1: 32.0, 2: 33.5, 5: 20.0}, "cross-entropy": {0: 31.0, 1: 32.5, 2: 35.0, 7: 90.0}}
    comparison = compared(errors)
    assert [method.label for method in comparison.methods] == ["cross-entropy", "isda"]
    assert comparison.methods[1].mean(comparison.figure).mean == pytest.approx(28.875)
    assert comparison.paired_seeds("isda") == pytest.approx({0: -1.0, 1: -0.5, 2: -1.5})
    low, high = stats.ttest_rel([30.0, 32.0, 33.5], [31.0, 32.5, 35.0]).confidence_interval(0.95)
    mean, half_width = comparison.differences["isda"]
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
    assert list(comparison.differences) == ["isda"]


def test_all_methods_share_one_variance_and_one_level(compared):
    ours = {"a": shifted(-1.0, -0.6, -0.6, -1.2), "b": shifted(-0.1, 0.1, -0.7, -0.2), "c": {0: 1.0}}
    comparison = compared({"cross-entropy": BASE} | ours)
    cells = {"cross-entropy": [*BASE.values()], "c": [1.0, None, None, None]}
    expected = many_to_one(cells | {name: [*ours[name].values()] for name in "ab"})
    for name, difference in comparison.differences.items():
        assert tuple(difference) == pytest.approx(tuple(expected[name]), rel=1e-3)
    text = "simultaneous 95% confidence intervals (Dunnett, pooled over 4 methods x 4 seeds, 3 runs missing)"
    assert text in comparison.table().caption
    record = comparison.as_json()
    assert record["intervals"]["procedure"] == "Dunnett"
    assert record["methods"][1]["difference_p"] == pytest.approx(expected.p_value("a"), abs=1e-4)


def test_unfinished_runs_are_listed_and_not_averaged(compared):
    comparison = compared({"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: None}})
    assert comparison.methods[1].of(comparison.figure) == {0: 9.0}
    assert [(label, run.seed, run.epoch) for label, run in comparison.unfinished] == [("isda", 1, 5)]
    assert tuple(comparison.differences["isda"]) == pytest.approx((-1.0, None))


def test_without_a_baseline_the_first_method_is_the_control(compared):
    comparison = compared({"a-method": {0: 2.0, 1: 3.0, 2: 2.2}, "b-method": {0: 1.0, 1: 2.5, 2: 1.4}})
    assert comparison.baseline.label == "a-method"
    assert list(comparison.differences) == ["b-method"]


# -- findings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ((-2.0, -1.5, -2.2, -1.9), r"ISDA has a lower test error: -1\.9 points \(95% interval -2\.4 to -1\.4\)"),
        ((2.0, 1.5, 2.2, 1.9), r"ISDA has a higher test error: \+1\.9 points \(95% interval 1\.4 to 2\.4\)"),
        (
            (-2.0, 1.5, -0.7, 0.9),
            r"No difference found; these 4 seeds cannot show less than 2\.5 points, about \d+ would",
        ),
    ],
)
def test_the_finding_is_a_sentence_that_respects_the_interval(compared, shifts, words):
    comparison = compared({"cross-entropy": BASE, "isda": shifted(*shifts)})
    assert re.match(words, comparison.finding())
    assert comparison.as_json()["finding"] == comparison.finding()
    assert comparison.finding() in comparison._repr_html_()


def test_seeds_are_named_for_a_planned_difference(compared):
    comparison = compared({"cross-entropy": BASE, "isda": shifted(-2.0, 1.5, -0.7, 0.9)})
    record = comparison.as_json(planned=0.5)
    assert f"about {record['plan']['seeds_needed']} would show 0.5" in record["finding"]


def test_of_several_methods_the_best_is_named(compared):
    better = {"isda": shifted(-2.0, -1.5, -2.2, -1.9), "mixup": shifted(-1.0, -1.3, -0.9, -1.1)}
    worse = {"wild": shifted(5.0, 5.5, 5.2, 4.9)}
    comparison = compared({"cross-entropy": BASE} | better | worse)
    assert comparison.finding().startswith("ISDA has a lower test error: -1.9 points (95% interval ")
    assert comparison.finding().endswith("; 2 of 3 methods are lower")


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ({"isda": {0: 9.0, 1: 11.0}}, "ISDA has a test error in % of 10.00 ± 1.41"),
        ({"isda": {0: None}}, "No run has finished yet"),
        ({"cross-entropy": {0: 10.0}, "isda": {0: None}}, "No two methods have finished the same seed"),
        (
            {"cross-entropy": {0: 10.0}, "isda": {0: 9.0}},
            "Too few seeds for an interval: ISDA differs by -1.00 points on 1 paired seed",
        ),
        (
            {"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: 16.0}},
            "No difference found; these 2 seeds cannot show less than 19.1 points, about 3 would show 10",
        ),
    ],
)
def test_too_few_runs_are_said_to_be_too_few(compared, errors, words):
    comparison = compared(errors)
    assert comparison.finding() == words


def test_a_figure_of_which_more_is_better_is_found_higher(strangers_folder):
    comparison = load(strangers_folder)
    assert [method.label for method in comparison.methods] == ["pixel-cross-entropy", "soft"]
    assert comparison.finding().startswith("soft has a higher mean IoU: +0.0047 (95% interval 0.00")
    assert "positive is better" in comparison.table().caption
    assert "points" not in terminal(comparison.table())


def test_equal_runs_show_no_difference(compared):
    assert compared({"cross-entropy": BASE, "isda": BASE}).finding().startswith("No difference found; these 4 seeds")


# -- tables and Python ----------------------------------------------------------------------------------------------


def test_the_table_is_the_same_in_the_terminal_in_html_and_as_records(compared):
    comparison = compared({"cross-entropy": BASE, "isda": shifted(-2.0, -1.5, -2.2, -1.9)})
    table = comparison.table()
    mean, half_width = comparison.differences["isda"]
    assert f"−1.90 ± {half_width:.2f}" in terminal(table)
    assert f'<td class="n strong">−1.90 ± {half_width:.2f}</td>' in table.html()
    first, second = table.records()
    assert (first["label"], first["difference_mean"], first["seeds"]) == ("cross-entropy", None, 4)
    assert (second["difference_mean"], second["difference_half_width"]) == pytest.approx((mean, half_width))
    for words in ("mean of the last 2 of 20 epochs", "seeds 0 to 3", "Student, 4 paired seeds", "negative is better"):
        assert words in table.caption
    assert "Scale small: a tenth of the recipe's epochs." in table.caption


def test_a_comparison_becomes_a_data_frame(compared):
    frame = compared({"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: None}}).to_pandas()
    assert list(frame.columns[:4]) == ["method", "seed", "finished", "epochs"]
    assert frame.groupby("method").error.mean().to_dict() == pytest.approx({"cross-entropy": 15.0, "isda": 9.0})
    assert frame.finished.tolist() == [True, True, True, False]
    assert math.isnan(frame.error.iloc[3])


def test_a_comparison_is_drawn_on_axes(compared):
    from matplotlib.figure import Figure

    comparison = compared({"cross-entropy": BASE, "isda": shifted(-2.0, -1.5, -2.2, -1.9)})
    ax = Figure().add_subplot()
    assert comparison.plot(ax=ax) is ax
    assert "isda" in [text.get_text() for text in ax.texts]
    assert comparison.plot().get_xlabel() == "difference in test error, points"


def test_json_has_what_a_program_needs(compared):
    record = json.loads(
        json.dumps(compared({"cross-entropy": BASE, "isda": shifted(-2.0, -1.5, -2.2, -1.9)}).as_json())
    )
    assert (record["baseline"], record["data"], record["epochs"]) == ("cross-entropy", "cifar10", 20)
    ours = record["methods"][1]
    assert ours["error_mean"] == pytest.approx(29.2)
    assert ours["errors"]["3"] == pytest.approx(30.3)
    assert ours["differences"]["0"] == pytest.approx(-2.0)
    assert len(ours["folders"]) == 4


# -- which runs are compared ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"data": "cifar100"}, {"network": "resnet-32"}, {"scale": "paper"}, {"lr": 0.2}, {"evaluated_on": "held-out"}],
)
def test_runs_that_were_trained_differently_are_not_compared(make_run, tmp_path, change):
    make_run(tmp_path / "a", "cross-entropy")
    make_run(tmp_path / "b", "isda", **change)
    one, other = summarise(find_runs([tmp_path]))
    assert (len(one.methods), len(other.methods)) == (1, 1)
    assert one.title != other.title
    with pytest.raises(ValueError, match=r"must differ in method and seed only, got .*; load each of these by itself"):
        load(tmp_path)


def test_all_methods_of_a_task_are_compared_when_asked_for_alike(tmp_path):
    methods = ["cross-entropy", "isda", "isda-tilted", "isda:covariance=diagonal"]
    for index, method in enumerate(methods):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "config.json").write_text(small_config(method=method, seed=index).as_json())
    assert len(load(tmp_path).methods) == len(methods)


def test_settings_that_are_the_method_s_own_name_it_where_they_differ(make_run, tmp_path):
    for index, (method, per_batch) in enumerate([("supervised", 64), ("vat", 32), ("vat", 8), ("vat+isda", 8)]):
        make_run(tmp_path / str(index), method, error=30.0 - index, unlabelled=100, labelled_per_batch=per_batch)
    names = ["supervised", "vat labelled_per_batch=32", "vat labelled_per_batch=8", "vat+isda"]
    assert [method.label for method in load(tmp_path).methods] == names


def test_titles_name_what_tells_comparisons_of_the_same_network_apart(make_run, tmp_path):
    make_run(tmp_path / "a", lr=0.1)
    make_run(tmp_path / "b", lr=0.2)
    make_run(tmp_path / "c", data="svhn")
    titles = [comparison.title for comparison in summarise(find_runs([tmp_path]))]
    assert titles == ["cifar10 with resnet-20, lr=0.1", "cifar10 with resnet-20, lr=0.2", "svhn with resnet-20"]


def test_two_finished_runs_of_one_seed_are_refused(make_run, tmp_path):
    make_run(tmp_path / "a", "isda", 4)
    make_run(tmp_path / "b", "isda", 4, stop=3)
    assert list(load(tmp_path).methods[0].of(load(tmp_path).figure)) == [4]
    make_run(tmp_path / "c", "isda", 4)
    with pytest.raises(ValueError, match=r"got two of isda with seed 4: .*a and .*c"):
        load(tmp_path)


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        summarise([])


def test_a_label_names_the_options_in_which_runs_of_the_method_differ(make_run, tmp_path):
    make_run(tmp_path / "a", "cross-entropy", method_options={})
    make_run(tmp_path / "b", "isda", method_options={"lambda_0": 0.5, "bound": "jensen", "memory": None})
    make_run(tmp_path / "c", "isda", method_options={"lambda_0": 0.5, "bound": "jensen", "memory": 500})
    assert labels(find_runs([tmp_path])) == ["cross-entropy", "isda", "isda memory=500"]


def test_figures_of_the_last_epoch_are_not_called_means_over_epochs(compared):
    loss = Figure(name="error", metric="train/loss", title="training loss", unit="nats", averaged=False)
    comparison = compared({"cross-entropy": {0: 1.0}, "isda": {0: 0.5}}, figures=(loss,))
    assert comparison.table().caption.startswith("Training loss, at epoch 20; seed 0. Difference: ")
    assert "difference, nats" in terminal(comparison.table())


def test_a_comparison_from_python_returns_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    settings = {"task_of": lambda method: Parabola(), "device": "cpu"}
    comparison = compare(ParabolaSettings(), ["plain", "parabola"], [0, 1, 2], tmp_path / "runs", **settings)
    assert [method.label for method in comparison.methods] == ["plain", "parabola"]
    assert comparison.finding() == load(tmp_path / "runs").finding()
    assert comparison.to_pandas().finished.all()
