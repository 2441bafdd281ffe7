"""`isda classify` as a user runs it, on files of embeddings and on tables."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from isda import ISDAClassifier
from isda.estimator.table_baselines import class_folds, compare_classifiers, confusion_text, probability_measures
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
    assert "; no test rows to evaluate on" in out
    assert "test rows  " not in out
    assert "confusion" not in out


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
        (["--test", "not-there.csv"], "not-there.csv does not exist"),
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


@pytest.fixture
def animals(rows, tmp_path):
    """A table with numbers, a column of text that decides much, and identifiers; the last 20 rows have no label."""
    features, labels = rows
    names = np.where(np.arange(120) < 100, NAMES[labels], "")
    covers = np.array(["fur", "wings", "hide"])[np.where(np.arange(120) % 7 == 0, 0, labels)]
    lines = ["PassengerId,size,cover,weight,label"]
    lines += [f"p{n},{features[n, 0]},{covers[n]},{features[n, 1]},{names[n]}" for n in range(120)]
    path = tmp_path / "animals.csv"
    path.write_text("\n".join(lines))
    return path, np.stack([features[:, 0], *(covers == value for value in ("fur", "hide", "wings")), features[:, 1]], 1)


def test_text_is_categories_and_identifiers_are_repeated(animals, rows, tmp_path):
    path, encoded = animals
    words = ["--lambda-0", "1", "--C", "1", "--predictions", tmp_path / "answers.csv", "--json", tmp_path / "said.json"]
    out, err, code = isda("classify", path, *words)
    assert (err, code) == ("", None)
    assert "categories: cover (3); not features, repeated in predictions: PassengerId" in out
    columns = json.loads((tmp_path / "said.json").read_text())["columns"]
    assert columns["categories"] == {"cover": ["fur", "hide", "wings"]}
    answers = list(csv.DictReader((tmp_path / "answers.csv").open()))
    assert [row["PassengerId"] for row in answers] == [f"p{n}" for n in range(100, 120)]
    model = ISDAClassifier(lambda_0=1, C=1).fit(encoded[:100], NAMES[rows[1][:100]])
    likely = model.predict_proba(encoded[100:]).max(1)
    assert [float(row["probability"]) for row in answers] == pytest.approx(likely, abs=1e-5)
    assert "must not identify rows, got 'label' for both" in isda("classify", path, "--id", "label")[2]
    given = isda("classify", path, "--id", "weight", *words[:4], "--json", "-")[0]
    assert json.loads(given)["columns"]["ids"] == ["weight", "PassengerId"]


def test_a_saved_model_predicts_other_rows(animals, rows, tmp_path):
    path, encoded = animals
    saved, answers = tmp_path / "animals.safetensors", tmp_path / "answers.csv"
    assert isda("classify", path, "--lambda-0", "1", "--C", "1", "--save", saved)[1:] == ("", None)
    model = ISDAClassifier(lambda_0=1, C=1).fit(encoded[:100], NAMES[rows[1][:100]])
    assert ISDAClassifier.load(saved).coef_ == pytest.approx(model.coef_, abs=1e-9)
    other = tmp_path / "other.csv"
    other.write_text("cover,weight,size,PassengerId\nfur,1,0.5,x\nscales,1,0.5,y\n")
    with pytest.warns(UserWarning, match="1 rows of .* 'cover' that no labelled row has, such as 'scales'"):
        assert isda("classify", other, "--model", saved, "--predictions", answers)[2] is None
    likely = model.predict_proba(np.array([[0.5, 1, 0, 0, 1], [0.5, 0, 0, 0, 1]])).max(1)
    rows_written = list(csv.DictReader(answers.open()))
    assert [row["PassengerId"] for row in rows_written] == ["x", "y"]
    assert [float(row["probability"]) for row in rows_written] == pytest.approx(likely, abs=1e-5)
    judged = json.loads(isda("classify", path, "--model", saved, "--json", "-")[0])
    assert judged["judged_by"] == 100
    right = model.predict(encoded[:100]) == NAMES[rows[1][:100]]
    assert judged["error"] == pytest.approx(100 * (1 - right.mean()))
    assert "--model does not train: leave out --save" in isda("classify", path, "--model", saved, "--save", saved)[2]
    assert "must be a classifier saved by" in isda("classify", path, "--model", path)[2]
    other.write_text("cover,weight\nfur,1\n")
    assert "got none called 'size'" in isda("classify", other, "--model", saved)[2]
    np.savez(tmp_path / "b.npz", x_train=np.ones((2, 3)), y_train=["ant", "bee"])
    assert f"must have the 5 features of {saved}, got 3" in isda("classify", tmp_path / "b.npz", "--model", saved)[2]


def test_a_saved_model_is_evaluated_on_labelled_rows_not_test_rows(animals, tmp_path):
    path, _ = animals
    saved, other = tmp_path / "animals.safetensors", tmp_path / "other.csv"
    isda("classify", path, "--lambda-0", "1", "--C", "1", "--save", saved)
    out = isda("classify", path, "--model", saved)[0]
    assert "animals.csv: 120 rows predicted by a saved classifier of" in out
    assert "evaluated on 100 labelled rows" in out
    assert "test rows" not in out
    other.write_text("cover,weight,size,PassengerId\nfur,1,0.5,x\n")
    out = isda("classify", other, "--model", saved)[0]
    assert "1 rows predicted" in out
    assert "; no labelled rows to evaluate on" in out


@pytest.mark.parametrize("last", ["remark {} of mine", "0.{}5"])
def test_free_text_and_measurements_are_not_taken_for_labels(tmp_path, last):
    path = tmp_path / "plants.csv"
    lines = [f"{i % 2 + i / 100:.2f},{'ab'[i % 2]},{last.format(i % 30)}" for i in range(120)]
    path.write_text("size,species,notes\n" + "\n".join(lines) + "\n")
    error = isda("classify", path)[2]
    value = min(last.format(i) for i in range(30))
    assert f"the last column of {path}, 'notes', has 30 different values in 120 rows, such as {value!r}" in error
    assert "name the column of labels with --label, one of size, species, or --label notes if these are" in error
    assert isda("classify", path, "--label", "species", "--ignore", "notes")[2] is None
    assert isda("classify", path, "--label", "notes", "--lambda-0", "1", "--C", "1")[2] is None


def test_a_class_of_one_row_each_cannot_be_held_out(tmp_path):
    path = tmp_path / "plants.csv"
    path.write_text("size,species\n" + "".join(f"{i / 7:.2f},plant {i}\n" for i in range(9)))
    assert (
        "must have two rows of a class to hold one out, got 9 rows of as many classes; --test"
        in isda("classify", path)[2]
    )


def test_simpler_classifiers_are_shown_beside_it(archive, rows):
    features, labels = rows
    out = isda("classify", archive, "--lambda-0", "1", "--C", "0.5", "--json", "-")[0]
    record = json.loads(out)
    # The test rows: 20 of each class, and the majority class of the training rows.
    assert record["tested"]["majority class"]["error"] == pytest.approx(100 * 2 / 3)
    shares = np.bincount(labels[10:60]) / 50
    expected = np.log(shares[labels[60:]]).mean()
    assert record["tested"]["majority class"]["log_likelihood"] == pytest.approx(expected)
    scaler = StandardScaler().fit(features[10:60])
    plain = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(scaler.transform(features[10:60]), labels[10:60])
    measures = probability_measures(plain.predict_proba(scaler.transform(features[60:])), labels[60:])
    assert record["tested"]["logistic regression"]["log_likelihood"] == pytest.approx(
        measures["log_likelihood"], abs=1e-4
    )
    assert record["tested"]["isda"]["error"] == record["error"]
    matrix = np.array(record["confusion"])
    assert matrix.sum(1).tolist() == [20, 20, 20]
    assert 100 * (1 - np.trace(matrix) / 60) == pytest.approx(record["error"])
    assert set(record["cross_validated"]) == {"majority class", "logistic regression", "isda"}
    shown = isda("classify", archive, "--lambda-0", "1", "--C", "0.5")[0]
    assert "confusion matrix: rows are classes, columns predictions" in shown
    assert "majority class" in shown


def test_cross_validation_predicts_rows_that_were_not_fitted(rows):
    features, labels = rows
    names = NAMES[labels]
    model = ISDAClassifier(lambda_0=1, C=1).fit(features, names)
    _, crossed = compare_classifiers(model, features, names, seed=3)
    folds = class_folds(labels, 5, seed=3)
    probabilities = np.empty((120, 3))
    for fold in range(5):
        part = ISDAClassifier(lambda_0=1, C=1).fit(features[folds != fold], names[folds != fold])
        probabilities[folds == fold] = part.predict_proba(features[folds == fold])
    assert crossed["isda"] == pytest.approx(probability_measures(probabilities, labels))


def test_many_classes_are_listed_by_their_confusions():
    matrix = np.diag(np.full(30, 5))
    matrix[3, 7] = 4
    lines = confusion_text([f"c{n}" for n in range(30)], matrix.tolist())
    assert lines == ["most frequent confusions:", "     4 c3 predicted as c7"]


def test_columns_of_many_texts_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("note,size,label\n" + "".join(f"n{n % 150},{n},{'ab'[n % 2]}\n" for n in range(300)))
    assert "'note' of " in isda("classify", path)[2]
    assert "at most 100 different texts, got 150" in isda("classify", path)[2]
