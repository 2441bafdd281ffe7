"""Semi-supervised methods as a user runs them: `isda train --method mean-teacher+isda --labels 50 ...`."""

import json
import math

import pytest

from isda.lab.engine.comparison import run_folder_name
from isda.lab.methods.semi import NAMES
from semi_runs import SEMI_WORDS
from small_runs import isda


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def expected_terms(name):
    terms = ["labelled"]
    if not name.startswith("supervised"):
        terms += ["consistency"] * name.endswith("+isda") + ["regulariser"]
    return {f"train/{term}" for term in terms}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_with_all_its_terms(name, tmp_path):
    out, _, code = isda("train", "--method", name, *SEMI_WORDS, "--epochs", 6, "--out", tmp_path / "run")
    assert code is None
    assert "test error" in out
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [6, 12, 18, 24, 30, 36]
    for line in lines:
        assert all(math.isfinite(value) for value in line.values())
        terms = {key for key in line if key.startswith("train/")} - {"train/loss", "train/error"}
        assert terms == expected_terms(name)
        assert sum(line[term] for term in terms) == pytest.approx(line["train/loss"], rel=1e-5)
        assert line.get("strength", 0) == pytest.approx(0.5 * line["step"] / 36 if name.endswith("+isda") else 0)
    assert lines[-1]["train/labelled"] < 0.9 * lines[0]["train/labelled"]
    if not name.startswith("supervised"):
        assert lines[-1]["train/regulariser"] > 0
    if name.endswith("+isda") and name != "supervised+isda":
        assert lines[-1]["train/consistency"] > 0


def test_the_weights_of_the_run_are_those_of_the_teacher(tmp_path):
    """They are loaded by `isda evaluate`, which must measure what the run reported."""
    isda(
        "train", "--method", "mean-teacher:teacher_decay=0.9", *SEMI_WORDS, "--checkpoint-steps", 18, "--out", tmp_path
    )
    out, _, code = isda("evaluate", tmp_path, "--json", "-")
    assert code is None
    measured, last = json.loads(out), metrics_of(tmp_path)[-1]
    for name in ("error", "nll", "calibration"):
        assert measured[name] == pytest.approx(last[f"test/{name}"], rel=1e-6)


def test_a_run_is_taken_up_with_its_own_settings(tmp_path):
    words = ["train", "--method", "temporal-ensembling+isda:eta_1=2", *SEMI_WORDS, "--checkpoint-steps", 4]
    isda(*words, "--out", tmp_path / "whole")
    isda(*words, "--out", tmp_path / "broken")
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "broken" / name).unlink()
    out, _, code = isda("train", "--resume", "--out", tmp_path / "broken")
    assert code is None
    assert "resumed after step 16 of 18" in out
    whole, broken = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert whole == broken


@pytest.mark.slow
def test_methods_are_compared_over_equally_many_steps_and_seeds(tmp_path):
    methods = ["supervised", "vat+isda:bound=tilted"]
    _, _, code = isda("compare", "--methods", *methods, "--seeds", 2, *SEMI_WORDS, "--epochs", 2, "--out", tmp_path)
    assert code is None
    folders = [tmp_path / run_folder_name(method, seed) for method in methods for seed in (0, 1)]
    assert [metrics_of(folder)[-1]["step"] for folder in folders] == [12] * 4
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("option", ["--unlabelled", "--labelled-per-batch", "--held-out-labels"])
def test_supervised_methods_have_no_options_for_unlabelled_images(option, tmp_path):
    _, complaint, code = isda("train", "--method", "isda", "--labels", 50, option, 5, "--out", tmp_path / "run")
    assert code == 2
    assert f"Unrecognized options: {option}, 5" in complaint
    assert not (tmp_path / "run").exists()


def test_methods_that_would_be_judged_by_different_images_are_not_compared(tmp_path):
    words = ["--methods", "cross-entropy", "vat", "--seeds", 1, "--labels", 40, "--held-out-labels", 0.25]
    _, _, code = isda("compare", *words, "--out", tmp_path / "runs")
    assert code == "isda: held_out_labels is not a setting of method cross-entropy"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "mean-teacher"], "labels must say how many images keep their label for method mean-teacher"),
        (["--method", "supervised+isda", "--unlabelled", 100], "labels must say how many images keep their label"),
        (["--method", "mean-techer", "--labels", 50], "got 'mean-techer'; did you mean 'mean-teacher'?"),
        (["--method", "vat:epsilno=2", "--labels", 50], "got 'epsilno'; did you mean 'epsilon'?"),
        (["--method", "vat", "--labels", 1297], "labels must be from 1 to 1296 for method vat, fewer than the 1297"),
        (["--method", "vat", "--labels", 1200, "--held-out", 97], "labels must be from 1 to 1199 for method vat"),
        (["--method", "vat", "--labels", 97, "--unlabelled", 1201], "unlabelled must be from 1 to 1200"),
        (["--method", "vat", "--labels", 97, "--unlabelled", 0], "unlabelled must be from 1 to 1200"),
        (
            ["--method", "vat", "--labels", 50, "--held-out-labels", 1],
            "held_out_labels must be a share from 0 to below",
        ),
        (
            ["--method", "vat", "--labels", 50, "--held-out-labels", 0.99],
            "held_out_labels must hold out some of labels",
        ),
    ],
)
def test_mistakes_end_in_one_sentence_before_anything_is_written(words, message, tmp_path):
    _, _, code = isda("train", *words, "--out", tmp_path / "run")
    assert message in str(code)
    assert "\n" not in str(code)
    assert not (tmp_path / "run").exists()
