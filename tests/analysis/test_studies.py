"""Studies: which methods they train; `isda reproduce` runs them."""

import math

import pytest

from isda.lab.analysis.studies import STUDIES, AblationStudy, ExplicitStudy, SensitivityStudy


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
        "memory of 500 samples (ours)": "isda:lambda_0=2,memory=500",
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
