"""Sentences about likelihood and calibration, accuracy beside error, and where a scale is named."""

import json
import re

import pytest
from scipy import stats

from isda.lab.cli.main import main
from isda.lab.engine import find_runs
from isda.lab.report.further_findings import further_findings
from isda.lab.report.page import render_report
from isda.lab.report.statistics import many_to_one
from isda.lab.report.summary import summarise
from isda.lab.report.wording import has_scale
from run_folders import write_run

BASE = (30.0, 31.0, 30.5)


def comparison(folder, methods):
    """A comparison of cross-entropy with methods; each has its differences in error, nll and calibration by seed."""
    for method, (error, nll, calibration) in {"cross-entropy": ((0.0,) * 3,) * 3, **methods}.items():
        for seed in range(3):
            run = write_run(folder / f"{method}-{seed}", method, seed, error=BASE[seed] + error[seed])
            result = json.loads((run / "result.json").read_text())
            result |= {"nll": 1.0 + nll[seed], "calibration": 4.0 + 0.1 * seed + calibration[seed]}
            (run / "result.json").write_text(json.dumps(result))
    (found,) = summarise(find_runs([folder]))
    return found


LOWER, NONE, HIGHER = (-2.0, -2.1, -1.9), (0.5, -0.6, 0.2), (17.6, 17.8, 17.7)


def test_a_calibration_that_contradicts_the_error_has_a_sentence(tmp_path):
    found = comparison(tmp_path, {"isda": (LOWER, (0.0,) * 3, HIGHER)})
    low, high = stats.ttest_1samp(HIGHER, 0).confidence_interval(0.95)
    half = f"{(high - low) / 2:.2f}"
    assert further_findings(found) == [
        f"isda (21.80%; +17.70 ± {half} points) has a higher test calibration error than cross-entropy (4.10%), "
        "although the test error is lower (simultaneous 95% confidence intervals)."
    ]


def test_a_likelihood_that_differs_while_the_error_does_not_has_a_sentence(tmp_path):
    found = comparison(tmp_path, {"isda": (NONE, (-0.30, -0.31, -0.29), NONE)})
    (sentence,) = further_findings(found)
    assert re.fullmatch(
        r"isda \(0\.700; −0\.300 ± 0\.\d+\) has a lower test negative log-likelihood than cross-entropy \(1\.000\), "
        r"although the test errors cannot be told apart \(simultaneous 95% confidence intervals\)\.",
        sentence,
    )


@pytest.mark.parametrize(
    ("error", "calibration"),
    [(LOWER, LOWER), (LOWER, NONE), (NONE, NONE), ((2.0, 2.1, 1.9), HIGHER)],
    ids=["both better", "error only", "neither", "both worse"],
)
def test_what_says_the_same_has_none(tmp_path, error, calibration):
    assert further_findings(comparison(tmp_path, {"isda": (error, (0.0,) * 3, calibration)})) == []


def test_several_methods_share_the_level_and_the_largest_differences_come_first(tmp_path):
    methods = {f"m{k}": (NONE, (0.0,) * 3, tuple(k * value for value in HIGHER)) for k in range(1, 6)}
    found = comparison(tmp_path, methods)
    (sentence,) = further_findings(found)
    assert re.findall(r"\bm\d\b", sentence) == ["m5", "m4", "m3"]
    values = {method.label: [run.result["calibration"] for run in method.runs] for method in found.methods}
    half = many_to_one(values)["m3"].half_width
    assert f"m3 (57.20%; +53.10 ± {half:.2f} points) and 2 more have a higher test calibration error than" in sentence


def test_one_seed_or_a_missing_figure_has_none(tmp_path):
    for method in ("cross-entropy", "isda"):
        write_run(tmp_path / method, method)
    (found,) = summarise(find_runs([tmp_path]))
    assert further_findings(found) == []


def test_the_page_has_the_sentence_beside_the_others(tmp_path):
    comparison(tmp_path, {"isda": (LOWER, (0.0,) * 3, HIGHER)})
    text = render_report(find_runs([tmp_path]), tmp_path, None, "isda report")
    findings = re.findall(r'<p class="finding">([^<]*)</p>', text)
    assert len(findings) == 2
    assert "lower test error" in findings[0]
    assert "a higher test calibration error" in findings[1]


def test_accuracy_stands_beside_the_error_on_request(tmp_path, capsys):
    comparison(tmp_path / "runs", {"isda": (LOWER, (0.0,) * 3, NONE)})
    arguments = ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html")]
    main(arguments)
    assert "accuracy, %" not in capsys.readouterr().out
    assert "Accuracy" not in (tmp_path / "report.html").read_text()
    main([*arguments, "--accuracy"])
    assert "71.50 ± 0.46" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    assert '<th scope="col" class="n">Accuracy, %</th>' in text
    assert '<td class="n">28.50 ± 0.46</td><td class="n">71.50 ± 0.46</td>' in text
    assert "--accuracy</code>" in text


def test_what_is_no_error_has_no_accuracy(strangers_folder):
    runs = find_runs([strangers_folder])
    assert "Accuracy" not in render_report(runs, strangers_folder, None, "isda report", accuracy=True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"data": "cifar10", "network": "resnet-110", "scale": "custom"}, True),
        ({"data": "cifar10", "network": "fast-cnn", "scale": "custom"}, False),
        ({"data": "digits", "network": "resnet-110", "scale": "custom"}, False),
        ({"data": "cifar10", "network": "resnet-50", "scale": "custom"}, False),
        ({"data": "digits", "network": "fast-cnn", "scale": "small"}, True),
    ],
)
def test_a_number_of_epochs_of_one_s_own_is_named_beside_the_paper_s_only(tmp_path, settings, named):
    write_run(tmp_path / "a", **settings)
    (run,) = find_runs([tmp_path])
    assert has_scale(run.config) == named
    text = render_report([run], tmp_path, None, "isda report")
    assert ("Scale" in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.S)) == named


@pytest.mark.parametrize(
    ("data", "network", "of_paper"),
    [
        ("cifar10", "resnet-110", True),
        ("imagenet", "resnet-50", True),
        ("flowers", "resnet-110", False),
        ("cifar10", "timm:resnet50", False),
        ("digits", "fast-cnn", False),
    ],
)
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_only_what_the_paper_trains_has_the_paper_s_recipe(tmp_path, data, network, of_paper, scale):
    write_run(tmp_path / "a", data=data, network=network, scale=scale)
    text = render_report(find_runs([tmp_path]), tmp_path, None, "isda report")
    assert ("the paper&#x27;s recipe in full" in text) == (of_paper and scale == "paper")
    assert ("the paper&#x27;s epochs" in text) == (of_paper and scale == "small")
    assert f"Scale <strong>{scale}: " in text
