"""Which runs are compared, what is averaged, and how it is put into words and into the terminal's table."""

import json
import math

import pytest
from rich.console import Console
from scipy import stats

from isda.lab.engine import Figure, find_runs
from isda.lab.engine.run_folder import RunFolder
from isda.lab.report.html_tables import results
from isda.lab.report.statistics import all_pairs, many_to_one
from isda.lab.report.summary import labels, summarise
from isda.lab.report.terminal_tables import comparison_table
from isda.lab.report.wording import caption, findings
from semi_runs import WRITTEN, semi_config
from small_runs import small_config


@pytest.fixture
def runs(tmp_path, make_run):
    """Write runs with given errors: {method: {seed: error, or None for an unfinished run}}."""

    def write(errors, **changes):
        for method, by_seed in errors.items():
            for seed, error in by_seed.items():
                stop = 5 if error is None else None
                make_run(tmp_path / "runs" / method / f"seed-{seed}", method, seed, stop, error=error, **changes)
        return find_runs([tmp_path / "runs"])

    return write


def test_errors_are_averaged_over_seeds_and_differences_over_common_seeds(runs):
    found = runs({"isda": {0: 30.0, 1: 32.0, 2: 33.5, 5: 20.0}, "cross-entropy": {0: 31.0, 1: 32.5, 2: 35.0, 7: 90.0}})
    (comparison,) = summarise(found)
    assert [method.label for method in comparison.methods] == ["cross-entropy", "isda"]
    ours = comparison.methods[1]
    assert ours.value.mean == pytest.approx(28.875)
    assert ours.differences == pytest.approx({0: -1.0, 1: -0.5, 2: -1.5})
    low, high = stats.ttest_rel([30.0, 32.0, 33.5], [31.0, 32.5, 35.0]).confidence_interval(0.95)
    assert ours.difference.mean - ours.difference.half_width == pytest.approx(low)
    assert ours.difference.mean + ours.difference.half_width == pytest.approx(high)
    assert comparison.baseline.difference is None


def test_unfinished_runs_are_listed_and_not_averaged(runs):
    (comparison,) = summarise(runs({"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: None}}))
    ours = comparison.methods[1]
    assert ours.values == {0: 9.0}
    assert [(run.seed, run.epoch) for run in ours.unfinished] == [(1, 5)]
    assert ours.difference.mean == pytest.approx(-1.0)
    assert ours.difference.half_width is None


def test_a_method_without_a_finished_run_has_neither_mean_nor_difference(runs):
    (comparison,) = summarise(runs({"cross-entropy": {0: 10.0}, "isda": {0: None}}))
    assert comparison.methods[1].value is None
    assert comparison.methods[1].difference is None
    assert findings(comparison) == []


def test_without_cross_entropy_the_first_method_is_the_baseline(runs):
    (comparison,) = summarise(runs({"a-method": {0: 2.0, 1: 3.0}, "b-method": {0: 1.0, 1: 2.5}}))
    assert comparison.baseline.label == "a-method"


@pytest.mark.parametrize(
    "change",
    [
        {"data": "cifar100"},
        {"network": "resnet-32"},
        {"scale": "paper"},
        {"lr": 0.2},
        {"network_options": {"width": 1}},
        {"evaluated_on": "held-out"},
        {"a_setting_of_another_version": 1},
    ],
)
def test_runs_that_were_trained_differently_are_not_compared(make_run, tmp_path, change):
    make_run(tmp_path / "a", "cross-entropy")
    make_run(tmp_path / "b", "isda", **change)
    comparisons = summarise(find_runs([tmp_path]))
    assert [len(comparison.methods) for comparison in comparisons] == [1, 1]
    assert comparisons[0].title != comparisons[1].title


def test_runs_with_no_more_settings_than_every_run_has_are_compared(make_run, tmp_path):
    for name, method in (("c", "cross-entropy"), ("d", "isda")):
        folder = make_run(tmp_path / name, method)
        config = json.loads((folder / "config.json").read_text())
        required = ("task", "data", "network", "method", "seed", "scale", "epochs", "steps_per_epoch", "figures")
        required += ("format", "evaluate_every")
        (folder / "config.json").write_text(json.dumps({key: config[key] for key in required}))
    (comparison,) = summarise(find_runs([tmp_path]))
    assert (comparison.config.average_last, comparison.config.evaluated_on) == (1, "test")
    assert comparison.baseline.label == "cross-entropy"


@pytest.mark.parametrize(
    ("resolved", "methods"),
    [
        (small_config, ["cross-entropy", "isda", "isda-tilted", "isda:covariance=diagonal,decay=0.9"]),
        (semi_config, [*WRITTEN.values()]),
    ],
)
def test_all_methods_of_a_task_are_compared_when_asked_for_alike(tmp_path, resolved, methods):
    # By default each semi-supervised method has its own share of labelled images.
    own = {"labelled_per_batch": None} if resolved is semi_config else {}
    for index, method in enumerate(methods):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "config.json").write_text(resolved(method=method, seed=index, **own).as_json())
    (comparison,) = summarise(find_runs([tmp_path]))
    assert [run.seed for run in comparison.runs] == [*range(len(methods))]
    assert len(comparison.methods) == len(methods)


def test_settings_that_are_the_method_s_own_name_it_where_they_differ(make_run, tmp_path):
    for index, (method, per_batch) in enumerate([("supervised", 64), ("vat", 32), ("vat", 8), ("vat+isda", 8)]):
        for seed in (0, 1):
            folder = tmp_path / f"{index}-{seed}"
            make_run(folder, method, seed, error=30.0 - index + seed, unlabelled=100, labelled_per_batch=per_batch)
    (comparison,) = summarise(find_runs([tmp_path]))
    names = ["supervised", "vat labelled_per_batch=32", "vat labelled_per_batch=8", "vat+isda"]
    assert [method.label for method in comparison.methods] == names
    # ISDA's part is taken to vat with the same settings.
    found = [one.from_isda and one.from_isda.mean for one in comparison.methods]
    assert found == pytest.approx([None, None, None, -1.0])


@pytest.mark.parametrize("named", [None, 3, [["lr"]], ["no_such_setting"]])
def test_settings_of_the_method_that_are_not_named_are_none(make_run, tmp_path, named):
    for method in ("cross-entropy", "isda"):
        folder = make_run(tmp_path / method, method)
        config = json.loads((folder / "config.json").read_text()) | {"of_method": named}
        (folder / "config.json").write_text(json.dumps(config))
    (comparison,) = summarise(find_runs([tmp_path]))
    assert [method.label for method in comparison.methods] == ["cross-entropy", "isda"]


def test_titles_name_what_tells_comparisons_of_the_same_network_apart(make_run, tmp_path):
    make_run(tmp_path / "a", lr=0.1)
    make_run(tmp_path / "b", lr=0.2)
    make_run(tmp_path / "c", data="svhn")
    titles = [comparison.title for comparison in summarise(find_runs([tmp_path]))]
    assert titles == ["cifar10 with resnet-20, lr=0.1", "cifar10 with resnet-20, lr=0.2", "svhn with resnet-20"]


def test_titles_tell_tasks_apart(make_run, tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", unlabelled=100)
    one, other = (comparison.title for comparison in summarise(find_runs([tmp_path])))
    assert one == "cifar10 with resnet-20, classification"
    assert other == "cifar10 with resnet-20, semi-supervised"


def test_two_finished_runs_of_one_seed_are_refused(make_run, tmp_path):
    make_run(tmp_path / "a", "isda", 4)
    make_run(tmp_path / "b", "isda", 4)
    with pytest.raises(ValueError, match=r"got two of isda with seed 4: .*a and .*b"):
        summarise(find_runs([tmp_path]))


def test_a_killed_run_may_have_been_started_again_elsewhere(make_run, tmp_path):
    make_run(tmp_path / "a", "isda", 4, stop=3)
    make_run(tmp_path / "b", "isda", 4)
    (comparison,) = summarise(find_runs([tmp_path]))
    assert list(comparison.methods[0].values) == [4]


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        summarise([])


def test_a_label_names_the_options_in_which_runs_of_the_method_differ(make_run, tmp_path):
    make_run(tmp_path / "a", "cross-entropy", method_options={})
    make_run(tmp_path / "b", "isda", method_options={"lambda_0": 0.5, "bound": "jensen", "decay": None})
    make_run(tmp_path / "c", "isda", method_options={"lambda_0": 0.5, "bound": "jensen", "decay": 0.99})
    make_run(tmp_path / "d", "mixed", method_options={"bound": "tilted", "ranks": [1, 2]})
    make_run(tmp_path / "e", "mixed", method_options={"bound": "jensen", "ranks": [1, 3]})
    assert labels(find_runs([tmp_path])) == [
        "cross-entropy",
        "isda",
        "isda decay=0.99",
        "mixed bound=tilted ranks=[1, 2]",
        "mixed bound=jensen ranks=[1, 3]",
    ]


def test_the_caption_says_everything_a_reader_needs(runs):
    (comparison,) = summarise(runs({"cross-entropy": {0: 10.0, 1: 20.0, 2: 12.0}, "isda": {0: 9.0, 1: 18.0, 2: 13.0}}))
    text = caption(comparison)
    for words in (
        "Test error in percent",
        "mean of the last 2 of 20 epochs",
        "mean ± standard deviation over seeds 0 to 2",
        "Difference: Δ vs cross-entropy, in percentage points, 95% confidence interval (Student, 3 paired seeds); "
        "negative is better",
        "Scale small: a tenth of the recipe",
    ):
        assert words in text


def test_held_out_errors_and_a_single_epoch_are_called_so(runs):
    (comparison,) = summarise(runs({"isda": {3: 9.0}}, evaluated_on="held-out", average_last=1, scale="custom"))
    assert caption(comparison) == ("Held-out error in percent, at epoch 20; seed 3.")


def test_a_figure_of_the_last_epoch_is_not_called_a_mean_over_epochs(runs):
    loss = Figure(name="error", metric="train/loss", title="training loss", unit="nats", averaged=False)
    (comparison,) = summarise(runs({"cross-entropy": {0: 1.0}, "isda": {0: 0.5}}, figures=(loss,)))
    assert caption(comparison).startswith("Training loss in nats, at epoch 20; seed 0. Difference: ")
    assert "Δ vs cross-entropy, in nats, 95% confidence interval" in caption(comparison)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ([9.0, 18.9, 11.1], "isda has 1.00 points lower test error than cross-entropy (95% interval 0.75 to 1.25, "),
        ([11.0, 20.9, 13.1], "isda has 1.00 points higher test error than cross-entropy (95% interval 0.75 to 1.25, "),
        ([9.0, 21.0, 12.3], "isda and cross-entropy cannot be told apart: +0.10 ± 2.52 points of test error (95% "),
    ],
)
def test_the_finding_is_a_sentence_that_respects_the_interval(runs, ours, words):
    base = {0: 10.0, 1: 20.0, 2: 12.0}
    (comparison,) = summarise(runs({"cross-entropy": base, "isda": dict(enumerate(ours))}))
    (sentence,) = findings(comparison)
    assert sentence.startswith(words)
    assert sentence.endswith("3 paired seeds).")


def test_one_seed_is_a_finding_without_an_interval(runs):
    (comparison,) = summarise(runs({"cross-entropy": {0: 10.0}, "isda": {0: 9.0}}))
    (sentence,) = findings(comparison)
    assert sentence.startswith("On 1 paired seed, isda differs from cross-entropy by −1.00 points of test error; ")
    assert sentence.endswith("too few seeds for an interval.")


def test_two_seeds_are_too_few_to_print_an_interval(runs):
    (comparison,) = summarise(runs({"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: 16.0}}))
    assert comparison.methods[1].difference.mean == pytest.approx(-2.5)
    assert comparison.methods[1].difference.half_width is None
    (sentence,) = findings(comparison)
    assert sentence.startswith(
        "On 2 paired seeds, isda differs from cross-entropy by −2.50 points of test error; too few"
    )
    assert "All intervals are left out: too few seeds (isda compare --plan says how many are needed)." in caption(
        comparison
    )
    console = Console(width=140, record=True)
    console.print(comparison_table(comparison))
    assert "± 19" not in console.export_text()


def test_all_methods_share_one_variance_and_one_level(runs):
    base = {0: 30.0, 1: 31.5, 2: 30.7, 3: 32.2}
    ours = {"a": {0: 29.0, 1: 30.9, 2: 30.1, 3: 31.0}, "b": {0: 29.9, 1: 31.6, 2: 30.0, 3: 32.0}, "c": {0: 1.0}}
    (comparison,) = summarise(runs({"cross-entropy": base} | ours))
    cells = {"cross-entropy": [*base.values()], "c": [1.0, None, None, None]}
    expected = many_to_one(cells | {name: [*ours[name].values()] for name in "ab"})
    for method in comparison.methods[1:]:
        assert tuple(method.difference) == pytest.approx(tuple(expected.shown(method.label)), rel=1e-3)
    text = "simultaneous 95% confidence intervals (Dunnett, pooled over 4 methods x 4 seeds, 3 runs missing)"
    assert f"Δ vs cross-entropy, in percentage points, {text}; negative is better." in caption(comparison)
    assert "(simultaneous 95% interval" in findings(comparison)[0]
    record = comparison.as_json()
    assert record["intervals"]["procedure"] == "Dunnett"
    assert record["intervals"]["degrees_of_freedom"] == 6
    assert record["intervals"]["differences"]["a"]["p"] == record["methods"][1]["difference_p"]
    assert record["methods"][1]["difference_p"] == pytest.approx(expected.p_value("a"), rel=1e-3)


def test_without_a_control_all_pairs_are_compared(runs):
    errors = {"a": {0: 30.0, 1: 31.0, 2: 32.5}, "b": {0: 29.0, 1: 30.5, 2: 31.0}, "c": {0: 29.5, 1: 30.0, 2: 31.0}}
    (comparison,) = summarise(runs(errors))
    expected = all_pairs({name: [*errors[name].values()] for name in "cba"})
    assert comparison.methods[1].difference == expected["b - a"]
    assert set(comparison.as_json()["intervals"]["differences"]) == {"b - a", "c - a", "c - b"}
    assert "(Tukey, pooled over 3 methods x 3 seeds)" in caption(comparison)
    assert "All 3 pairs of methods" in results(comparison, dict.fromkeys("abc", 0))


def test_a_method_of_larger_variance_is_named(runs):
    base = {0: 30.0, 1: 31.5, 2: 30.7, 3: 32.2}
    near = {
        name: {s: v - shift + 0.1 * ((s * k) % 3) for s, v in base.items()}
        for name, shift, k in (("a", 1, 2), ("b", 0, 1))
    }
    (comparison,) = summarise(runs({"cross-entropy": base} | near | {"wild": {0: 5.0, 1: 70.0, 2: 20.0, 3: 55.0}}))
    assert list(comparison.intervals.separate) == ["wild"]
    assert "times the variance of the others: its differences have Student's intervals, not pooled" in caption(
        comparison
    )
    assert "pooled over 3 methods x 4 seeds" in caption(comparison)


def test_an_interval_that_only_one_comparison_would_allow_is_not_a_finding(runs):
    # |t| = 3 with 4 degrees of freedom of the second comparison: beyond Student's quantile 2.78, within Dunnett's 3.31.
    base, noise = {0: 30.0, 1: 31.0, 2: 32.0}, {0: 0.3, 1: -0.3, 2: 0.0}
    clear = {seed: value - 0.9 + noise[seed] for seed, value in base.items()}
    (alone,) = summarise(runs({"cross-entropy": base, "isda": clear}))
    assert "isda has 0.90 points lower test error" in findings(alone)[0]
    other = {seed: value + 0.62 * (seed == 0) - 0.62 * (seed == 2) for seed, value in base.items()}
    (both,) = summarise(runs({"isda-tilted": other}))
    assert "isda and cross-entropy cannot be told apart" in findings(both)[0]


def test_json_holds_what_the_table_shows(runs):
    found = runs({"cross-entropy": {0: 10.0, 1: 20.0}, "isda": {0: 9.0, 1: 19.5, 2: None}})
    (comparison,) = summarise(found)
    record = json.loads(json.dumps(comparison.as_json(), allow_nan=False))
    assert (record["data"], record["scale"], record["average_last"]) == ("cifar10", "small", 2)
    assert (record["evaluated_on"], record["baseline"]) == ("test", "cross-entropy")
    base, ours = record["methods"]
    assert base["difference_mean"] is None
    assert ours["errors"] == {"0": 9.0, "1": 19.5}
    assert ours["error_mean"] == pytest.approx(14.25)
    assert ours["difference_mean"] == pytest.approx(-0.75)
    assert ours["difference_half_width"] == pytest.approx(12.7062 * 0.25, rel=1e-4)
    assert [(one["seed"], one["epoch"]) for one in ours["unfinished"]] == [(2, 5)]


def test_the_terminal_s_table_shows_means_differences_and_unfinished_runs(runs):
    found = runs({"cross-entropy": {0: 10.0, 1: 20.0}, "[bold]isda": {0: 9.0, 1: 19.5, 2: None, 3: 8.0}})
    console = Console(width=140, record=True)
    console.print(comparison_table(*summarise(found)))
    text = " ".join(console.export_text().split())
    assert "15.00 ± 7.07" in text
    assert "−0.75 ±" not in text  # two paired seeds
    assert "−0.75" in text
    assert "3 (2 paired)" in text
    assert "seed 2 at epoch 5" in text
    assert "[bold]isda" in text
    assert "Scale small: a tenth of the recipe" in text


def test_isda_s_part_is_the_difference_to_the_same_method_without_it(runs):
    found = runs(
        {
            "supervised": {0: 40.0, 1: 44.0, 2: 41.0},
            "vat": {0: 30.0, 1: 33.0, 2: 31.5},
            "vat+isda": {0: 28.0, 1: 32.0, 2: 30.0},
            "mean-teacher+isda": {0: 20.0, 1: 21.0, 2: 21.5},
        }
    )
    (comparison,) = summarise(found)
    by_label = {method.label: method for method in comparison.methods}
    assert comparison.baseline.label == "supervised"
    assert by_label["vat+isda"].difference.mean == pytest.approx(-35 / 3)
    # A family of its own, with the variance of the whole layout.
    half_width = stats.t.ppf(0.975, df=6) * comparison.intervals.pooled.std * math.sqrt(2 / 3)
    assert by_label["vat+isda"].from_isda == pytest.approx((-1.5, half_width))
    assert by_label["mean-teacher+isda"].from_isda is None
    assert by_label["vat"].from_isda is None
    assert comparison.tells_isda_apart
    console = Console(width=160, record=True)
    console.print(comparison_table(comparison))
    text = " ".join(console.export_text().split())
    assert "from ISDA, points" in text
    assert f"−1.50 ± {half_width:.2f}" in text
    assert "From ISDA: the method − the same one without +isda, simultaneous intervals of their own." in caption(
        comparison
    )
    record = next(one for one in comparison.as_json()["methods"] if one["label"] == "vat+isda")
    assert record["from_isda_mean"] == pytest.approx(-1.5)
    assert "From ISDA, points" in results(comparison, dict.fromkeys(by_label, 0))


def test_isda_s_part_has_no_column_where_the_baseline_is_the_method_without_it(runs):
    (comparison,) = summarise(runs({"vat": {0: 30.0, 1: 33.0}, "vat+isda": {0: 28.0, 1: 32.0}}))
    assert comparison.methods[1].from_isda == comparison.methods[1].difference
    assert list(comparison.intervals) == ["vat+isda - vat"]
    assert not comparison.tells_isda_apart
    assert "From ISDA" not in caption(comparison)


def test_isda_s_part_over_all_methods_is_student_s_interval_of_all_pairs(runs):
    errors = {"vat": {0: 30.0, 1: 33.0}, "pi-model": {0: 35.0, 1: 34.0}}
    with_isda = {"vat+isda": {0: 28.0, 1: 32.5}, "pi-model+isda": {0: 34.5, 1: 33.0}}
    (comparison,) = summarise(runs({"supervised": {0: 40.0, 1: 44.0}} | errors | with_isda))
    interval, pairs = comparison.isda_overall
    low, high = stats.ttest_1samp([-2.0, -0.5, -0.5, -1.0], 0).confidence_interval(0.95)
    assert (interval.mean - interval.half_width, interval.mean + interval.half_width) == pytest.approx((low, high))
    assert pairs == 4
    assert "From ISDA over all of these methods: −1.00 ± 1.13 (Student's 95% confidence interval, 4 pairs" in caption(
        comparison
    )
    assert comparison.as_json()["from_isda_overall"]["pairs"] == 4


def test_isda_s_part_is_not_taken_to_a_method_with_other_options(runs, tmp_path, make_run):
    runs({"supervised": {0: 9.0}, "vat+isda": {0: 7.0}})
    make_run(tmp_path / "runs" / "vat" / "seed-0", "vat", method_options={"epsilon": 1.0}, error=8.0)
    (comparison,) = summarise(find_runs([tmp_path / "runs"]))
    assert [method.label for method in comparison.methods] == ["supervised", "vat", "vat+isda"]
    assert all(method.from_isda is None for method in comparison.methods)


def test_runs_with_other_unlabelled_images_are_another_comparison(runs, tmp_path, make_run):
    runs({"supervised": {0: 9.0}}, unlabelled=100)
    make_run(tmp_path / "runs" / "other" / "seed-0", "supervised", 0, None, error=8.0, unlabelled=200)
    assert len(summarise(find_runs([tmp_path / "runs"]))) == 2


def set_strengths(folder, strengths):
    """Replace the strength of every epoch of a run."""
    file = RunFolder(folder).metrics_file
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [line | {"strength": value} for line, value in zip(lines, strengths, strict=True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))


@pytest.mark.parametrize(
    ("method", "zero", "note"),
    [
        (
            "isda",
            (0, 1, 2),
            "λ stayed 0 in 3 of 3 runs of isda: these runs are cross-entropy, and their difference is not an effect of "
            "ISDA.",
        ),
        ("isda", (1,), "λ stayed 0 in 1 of 3 runs of isda: these runs are cross-entropy."),
        ("mixup+isda", (0, 2), "λ stayed 0 in 2 of 3 runs of mixup+isda: these runs are mixup."),
        ("isda", (), ""),
    ],
)
def test_runs_whose_strength_stayed_zero_are_not_credited_to_isda(make_run, tmp_path, method, zero, note):
    for seed, errors in enumerate(((10.0, 9.0), (11.0, 10.1), (10.5, 9.4))):
        for name, error in zip(("cross-entropy", method), errors, strict=True):
            options = {"method_options": {} if name == "cross-entropy" else {"lambda_0": "auto"}}
            make_run(tmp_path / name / f"seed-{seed}", name, seed, error=error, **options)
        # The strength after the last epoch is used by no step.
        set_strengths(tmp_path / method / f"seed-{seed}", [0.0] * 19 + [0.4] if seed in zero else [0.0, *[0.4] * 19])
    (comparison,) = summarise(find_runs([tmp_path]))
    (sentence,) = findings(comparison)
    page = str(results(comparison, {"cross-entropy": 0, method: 1}))
    assert comparison.as_json()["methods"][1]["runs_without_strength"] == list(zero)
    for text in (sentence, caption(comparison), page):
        assert note in text
        assert ("λ stayed 0" in text) == bool(note)


def test_a_schedule_that_reaches_its_strength_in_one_epoch_is_isda(make_run, tmp_path):
    make_run(tmp_path / "a", "isda", 0, epochs=1, milestones=())
    (comparison,) = summarise(find_runs([tmp_path]))
    assert comparison.methods[0].without_strength == ()
