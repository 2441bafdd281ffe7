"""`isda classify` as a user runs it, on files of embeddings and on tables."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from isda import ISDAClassifier
from isda.estimator.embedding_tables import probability_measures
from small_runs import isda

NAMES = np.array(["ant", "bee", "cow"])


@pytest.fixture(scope="module")
def rows():
    """Three clouds that overlap: (120, 4) features and their labels."""
    chance = np.random.default_rng(0)
    labels = np.arange(120) % 3
    return chance.normal(size=(120, 4)) + 1.5 * np.eye(3, 4)[labels], labels


@pytest.fixture(scope="module")
def archive(rows, tmp_path_factory):
    """60 training rows, of which 10 have no label, and 60 test rows."""
    features, labels = rows
    path = tmp_path_factory.mktemp("embeddings") / "clouds.npz"
    hidden = np.where(np.arange(60) < 10, -1, labels[:60])
    np.savez(path, x_train=features[:60], y_train=hidden, x_test=features[60:], y_test=labels[60:], classes=NAMES)
    return path


def table(path, features, names):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"f{n}" for n in range(features.shape[1])), "label"])
        writer.writerows([*row, name] for row, name in zip(features.tolist(), names, strict=True))
    return path


def test_the_figures_are_those_of_the_estimator(archive, rows, tmp_path):
    features, labels = rows
    out, err, code = isda("classify", archive, "--json", tmp_path / "said.json")
    assert (err, code) == ("", None)
    record = json.loads((tmp_path / "said.json").read_text())
    model = ISDAClassifier(random_state=0).fit(features[10:60], NAMES[labels[10:60]])
    expected = probability_measures(model.predict_proba(features[60:]), labels[60:])
    assert {key: record[key] for key in expected} == pytest.approx(expected)
    assert (record["lambda_0"], record["C"], record["scale"]) == (model.lambda_0_, model.C_, model.scale_)
    assert record["standardize"] == model.standardize_
    assert (record["rows"], record["judged_by"], record["unlabelled"]) == (50, 60, 10)
    assert record["classes"] == NAMES.tolist()
    assert f"{expected['error']:.3f}" in out
    assert f"{expected['log_likelihood']:.3f}" in out


def test_without_augmentation_it_is_logistic_regression(archive, rows):
    features, labels = rows
    out, _, code = isda("classify", archive, "--lambda-0", "0", "--C", "0.5", "--json", "-")
    assert code is None
    scaler = StandardScaler().fit(features[10:60])
    plain = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(scaler.transform(features[10:60]), labels[10:60])
    expected = probability_measures(plain.predict_proba(scaler.transform(features[60:])), labels[60:])
    assert json.loads(out)["log_likelihood"] == pytest.approx(expected["log_likelihood"], abs=1e-4)


def test_rows_without_a_label_are_predicted(archive, rows, tmp_path):
    features, labels = rows
    isda("classify", archive, "--lambda-0", "1", "--C", "1", "--predictions", tmp_path / "deep" / "answers.csv")
    answers = list(csv.DictReader((tmp_path / "deep" / "answers.csv").open()))
    model = ISDAClassifier(lambda_0=1, C=1).fit(features[10:60], NAMES[labels[10:60]])
    likely = model.predict_proba(features[:10])
    assert [row["prediction"] for row in answers] == NAMES[likely.argmax(1)].tolist()
    assert [float(row["probability"]) for row in answers] == pytest.approx(likely.max(1), abs=1e-5)
    assert [(row["file"], int(row["row"])) for row in answers] == [(str(archive), n) for n in range(1, 11)]


def test_a_table_is_split_and_then_all_of_its_labels_count(rows, tmp_path):
    features, labels = rows
    names = np.where(np.arange(120) < 100, NAMES[labels], "")
    file = table(tmp_path / "rows.csv", features, names)
    words = ["--lambda-0", "1", "--C", "1", "--split", "0.3", "--predictions", tmp_path / "answers.csv"]
    out, err, code = isda("classify", file, *words)
    assert (err, code) == ("", None)
    assert "trained on 70 rows of 4 features, 3 classes" in out
    assert "evaluated on 30 held-out rows" in out
    answers = list(csv.DictReader((tmp_path / "answers.csv").open()))
    whole = ISDAClassifier(lambda_0=1, C=1).fit(features[:100], names[:100])
    assert [row["prediction"] for row in answers] == whole.predict(features[100:]).tolist()
    assert [int(row["row"]) for row in answers] == list(range(102, 122))
    other = json.loads(isda("classify", file, *words[:6], "--seed", "1", "--json", "-")[0])
    same = json.loads(isda("classify", file, *words[:6], "--json", "-")[0])
    assert other["log_likelihood"] != same["log_likelihood"]


def test_settings_that_were_judged_are_those_that_predict(rows, tmp_path):
    features, labels = rows
    names = np.where(np.arange(120) < 100, NAMES[labels], "")
    file = table(tmp_path / "rows.csv", features, names)
    out, _, _ = isda("classify", file, "--lambda-0", "30", "--predictions", tmp_path / "answers.csv", "--json", "-")
    chosen = json.loads(out)
    assert chosen["scale"] != 1
    settings = {name: chosen[name] for name in ("C", "scale", "standardize")}
    whole = ISDAClassifier(lambda_0=30, **settings).fit(features[:100], names[:100])
    answers = list(csv.DictReader((tmp_path / "answers.csv").open()))
    likely = whole.predict_proba(features[100:]).max(1)
    assert [float(row["probability"]) for row in answers] == pytest.approx(likely, abs=1e-5)


def test_a_second_file_is_judged_by_and_filled_in(rows, tmp_path):
    features, labels = rows
    learnt = table(tmp_path / "learnt.csv", features[:60], NAMES[labels[:60]])
    names = NAMES[labels[60:]].copy()
    names[::4] = ""
    judged = table(tmp_path / "judged.csv", features[60:], names)
    words = ["classify", learnt, "--test", judged, "--lambda-0", "1", "--C", "1"]
    record = json.loads(isda(*words, "--json", "-", "--predictions", tmp_path / "answers.csv")[0])
    assert (record["rows"], record["judged_by"], record["unlabelled"], record["held_out"]) == (60, 45, 15, False)
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 16
    nothing = table(tmp_path / "nothing.csv", features[60:], [""] * 60)
    out, _, code = isda(*words[:2], "--test", nothing, *words[4:])
    assert code is None
    assert "evaluated on 0 test rows" in out
    assert "error" not in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--lambda-0", "strong"], "lambda_0 must be \"auto\" or a number, got 'strong'"),
        (["--lambda-0", "-1"], "lambda_0 must be"),
        (["--C", "0"], "C must be"),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, got -1"),
        (["--C", "1e300"], "C must be a finite number >= 1e-12 and <= 1e+12, got 1e+300"),
        (["--lambda-0", "1e300"], "lambda_0 must be a finite number >= 0 and <= 1e+09, got 1e+300"),
        (["--covariance", "withn"], "did you mean 'within'"),
        (["--offset", "ldma"], "did you mean 'ldam'"),
        (["--label", "kind"], "label and ignore name columns of a table"),
        (["--split", "2"], "split must lie strictly between 0 and 1, got 2"),
        (["--test", "not-there.csv"], "not-there.csv is not a file"),
    ],
)
def test_what_is_wrong_is_one_sentence(archive, words, told):
    out, _, code = isda("classify", archive, *words)
    assert told in str(code)
    assert str(code).startswith("isda: ")
    assert out == ""


def test_features_that_are_no_numbers_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=[[1.0], [np.nan], [2.0], [3.0]], y_train=[0, 0, 1, 1])
    code = isda("classify", tmp_path / "a.npz", "--split", "0.5")[2]
    assert "must be finite, got 1" in str(code)
    file = table(tmp_path / "b.csv", np.ones((4, 1)), ["a", "a", "b", "b"])
    assert "predictions are of rows without a label" in str(isda("classify", file, "--predictions", "c.csv")[2])


def test_the_order_of_columns_changes_nothing(rows, tmp_path):
    features, labels = rows
    learnt, judged = (table(tmp_path / f"{n}.csv", features[n::2], NAMES[labels[n::2]]) for n in (0, 1))
    lines = [line.split(",") for line in judged.read_text().splitlines()]
    turned = tmp_path / "turned.csv"
    turned.write_text("\n".join(";".join([line[4], *line[3::-1]]) for line in lines))
    words = ["--lambda-0", "1", "--C", "1", "--json", "-"]
    records = [json.loads(isda("classify", learnt, "--test", file, *words)[0]) for file in (judged, turned)]
    assert records[0]["error"] == records[1]["error"] < 50
    assert records[0]["log_likelihood"] == pytest.approx(records[1]["log_likelihood"], abs=1e-12)
    other = turned.read_text().replace("f0", "g0")
    turned.write_text(other)
    assert "got none called 'f0'" in str(isda("classify", learnt, "--test", turned, *words)[2])


def test_what_a_spreadsheet_would_run_is_escaped_in_predictions(rows, tmp_path, monkeypatch):
    features, labels = rows
    monkeypatch.chdir(tmp_path)
    names = np.array(["=1+2", "-1.5", "@cow"])[labels]
    names[90:] = ""
    file = table(Path("-rows.csv"), features, names)
    code = isda("classify", f"./{file}", "--lambda-0", "1", "--C", "1", "--predictions", "answers.csv")[2]
    assert code is None
    with open("answers.csv", newline="") as written:
        answers = list(csv.DictReader(written))
    assert {row["prediction"] for row in answers} == {"'=1+2", "-1.5", "'@cow"}
    assert {row["file"] for row in answers} == {"'-rows.csv"}


def test_values_whose_squares_overflow_are_refused(rows, tmp_path):
    features, labels = rows
    features = np.where(np.arange(480).reshape(120, 4) == 5, 1e308, features)
    code = isda("classify", table(tmp_path / "a.csv", features, NAMES[labels]))[2]
    assert "a.csv must be smaller than 6.4e+147 in magnitude" in str(code)
    assert "got 1e+308 in row 3" in str(code)
