"""Studies: which methods they train, what their tables say, and the command as people run it."""

import json
import math

import pytest

from isda.lab.analysis.studies import STUDIES, AblationStudy, ExplicitStudy, SensitivityStudy, rows_of
from isda.lab.cli import main
from isda.lab.report.statistics import many_to_one

WORDS = ["--labels", "60", "--epochs", "1", "--width", "0.25", "--batch-size", "20", "--threads", "1", "--seeds", "2"]


@pytest.fixture(scope="module")
def sensitivity(tmp_path_factory):
    """A study of two strengths, made by the command."""
    out = tmp_path_factory.mktemp("study") / "sensitivity"
    words = ["--methods", "isda", "--values", "0.5", "5", "--out", str(out), "--json", str(out / "study.json")]
    main(["study", "sensitivity", *WORDS, *words])
    return out


def test_ablation_has_the_rows_of_the_papers_table_and_ours():
    cells = {cell.label: cell.method for cell in AblationStudy.cells(["isda:lambda_0=2"], [])}
    assert cells == {
        "cross-entropy (basic)": "cross-entropy",
        "isda:lambda_0=2": "isda:lambda_0=2",
        "identity matrix": "isda:lambda_0=2,covariance=identity",
        "diagonal matrix": "isda:lambda_0=2,covariance=diagonal",
        "single covariance matrix": "isda:lambda_0=2,covariance=shared",
        "constant λ0": "isda:lambda_0=2,schedule=constant",
        "low rank (ours)": "isda:lambda_0=2,covariance=low_rank",
        "tilted bound (ours)": "isda:lambda_0=2,bound=tilted",
        "decay 0.99 (ours)": "isda:lambda_0=2,decay=0.99",
    }


def test_semi_supervised_methods_are_compared_to_themselves_without_isda():
    assert SensitivityStudy.cells(["vat+isda"], [0.5])[0].method == "vat"
    assert AblationStudy.cells(["vat+isda"], [])[0].method == "vat"


def test_explicit_goes_from_none_to_infinity_with_both_covariances():
    cells = ExplicitStudy.cells(["isda:lambda_0=1"], [1, 5])
    assert [cell.x for cell in cells] == [0, 1, 5, math.inf, 1, 5, math.inf]
    assert cells[2].method == "explicit:lambda_0=1,samples=5"
    assert cells[-1].method == "isda:lambda_0=1,covariance=learned"


@pytest.mark.parametrize(
    ("name", "methods", "values", "told"),
    [
        ("sensitivity", ["isda"], [0.0], "strengths must be above 0"),
        ("ablation", ["isda", "isda-tilted"], [], "an ablation takes one method"),
        ("explicit", ["mixup"], [1], "takes one method, isda or isda-tilted"),
        ("explicit", ["isda"], [0.5], "must be integers of at least 1"),
        ("explicit", ["isda"], [math.inf], "must be integers of at least 1"),
    ],
)
def test_what_makes_no_study_is_refused(name, methods, values, told):
    with pytest.raises(ValueError, match=told):
        STUDIES[name].cells(methods, values)


def test_rows_are_means_over_seeds_and_paired_differences(sensitivity):
    base, weak, strong = rows_of(SensitivityStudy.cells(["isda"], [0.5, 5.0]), sensitivity, [0, 1])
    errors = {row.cell.label: [row.runs[seed].result["nll"] for seed in (0, 1)] for row in (base, weak, strong)}
    assert strong.values["nll"].mean == pytest.approx(sum(errors["isda, λ0 = 5"]) / 2)
    # The two differences of one metric are a family.
    assert strong.differences["nll"] == pytest.approx(many_to_one(errors)["isda, λ0 = 5"])
    assert base.differences == {}


def test_the_command_leaves_pages_and_repeats_nothing(sensitivity, capsys):
    record = json.loads((sensitivity / "study.json").read_text())
    assert [row["label"] for row in record["rows"]] == ["cross-entropy", "isda, λ0 = 0.5", "isda, λ0 = 5"]
    page = (sensitivity / "study.html").read_text()
    assert "isda study sensitivity" in page
    assert 'href="report.html"' in page
    assert (sensitivity / "report.html").is_file()
    weights = sensitivity / "cross-entropy" / "seed-0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    words = ["--methods", "isda", "--values", "0.5", "5", "--out", str(sensitivity)]
    main(["study", "sensitivity", *WORDS, *words])
    assert weights.stat().st_mtime_ns == before
    assert "isda, λ0 = 5" in capsys.readouterr().out


def test_unfinished_runs_do_not_count(sensitivity, tmp_path):
    import shutil

    copy = shutil.copytree(sensitivity, tmp_path / "copy")
    (copy / "isda-lambda_0=5" / "seed-1" / "result.json").unlink()
    *_, strong = rows_of(SensitivityStudy.cells(["isda"], [0.5, 5.0]), copy, [0, 1])
    assert list(strong.runs) == [0]
    for result in copy.rglob("result.json"):
        result.unlink()
    with pytest.raises(ValueError, match="no run of the study is finished"):
        rows_of(SensitivityStudy.cells(["isda"], [0.5, 5.0]), copy, [0, 1])


def test_a_strength_that_is_not_finite_is_refused_although_the_study_replaces_it(tmp_path):
    with pytest.raises(SystemExit, match="lambda_0 must be a finite number, got inf"):
        main(["study", "sensitivity", *WORDS, "--values", "0.5", "--lambda-0", "inf", "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
