"""`isda classify` on tables as users have them, and `isda embed`, whose file it reads."""

import json
import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_iris

from isda.lab.cli import main

pandas = pytest.importorskip("pandas")
pytest.importorskip("skrub")


@pytest.fixture
def animals():
    """A table with gaps, a date, categories, percent signs and an id column; the species follows from the length."""
    chance = np.random.default_rng(0)
    length = np.r_[chance.normal(10, 1, 40), chance.normal(20, 1, 40)]
    frame = pandas.DataFrame(
        {
            "id": [f"animal {number}" for number in range(80)],
            "length": length,
            "share": [f"{value:.1f}%" for value in length * 2],
            "colour": chance.choice(["red", "blue", "green"], 80),
            "seen": pandas.date_range("2024-01-01", periods=80).strftime("%Y-%m-%d"),
            "species": ["cat"] * 40 + ["dog"] * 40,
        }
    )
    for name in ("length", "share", "colour", "seen"):
        frame.loc[chance.choice(80, 8, replace=False), name] = None
    return frame.sample(frac=1, random_state=0)


def figures(tmp_path, *words):
    main(["classify", *map(str, words), "--json", str(tmp_path / "out.json")])
    return json.loads((tmp_path / "out.json").read_text())


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_table_with_gaps_is_classified_in_one_command(animals, tmp_path, suffix, capsys):
    path = tmp_path / f"animals.{suffix}"
    if suffix == "parquet":
        animals.to_parquet(path)
    else:
        animals.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    found = figures(tmp_path, path)
    assert found["tested"]["isda"]["error"] < 10
    assert found["tested"]["majority class"]["error"] > 40
    assert set(found["cross_validated"]) == {"isda", "logistic regression", "majority class"}
    assert np.sum(found["confusion"]) == 16
    assert "confusion matrix" in capsys.readouterr().out


def test_rows_without_a_label_are_predicted_with_their_ids(animals, tmp_path):
    animals.iloc[:5, -1] = None
    animals.to_csv(tmp_path / "animals.csv", index=False)
    figures(tmp_path, tmp_path / "animals.csv", "--predictions", tmp_path / "answers.csv")
    answers = pandas.read_csv(tmp_path / "answers.csv")
    assert answers["id"].tolist() == animals["id"].iloc[:5].tolist()
    assert set(answers["prediction"]) <= {"cat", "dog"}
    assert answers["probability"].between(0.5, 1).all()


def test_a_saved_model_predicts_a_table_with_its_columns_in_another_order(animals, tmp_path):
    animals.to_csv(tmp_path / "animals.csv", index=False)
    figures(tmp_path, tmp_path / "animals.csv", "--label", "species", "--save", tmp_path / "animals.skops")
    animals[["seen", "colour", "share", "length"]].to_csv(tmp_path / "new.csv", index=False)
    words = ("--model", tmp_path / "animals.skops", "--predictions", tmp_path / "answers.csv")
    figures(tmp_path, tmp_path / "new.csv", *words)
    answers = pandas.read_csv(tmp_path / "answers.csv")
    assert (answers["prediction"].to_numpy() == animals["species"].to_numpy()).mean() > 0.9


def test_columns_of_a_test_table_are_matched_by_name(animals, tmp_path):
    animals.iloc[:50].to_csv(tmp_path / "train.csv", index=False)
    animals.iloc[50:, ::-1].to_csv(tmp_path / "test.csv", index=False)
    found = figures(tmp_path, tmp_path / "train.csv", "--test", tmp_path / "test.csv")
    assert found["rows"] == 50
    assert np.sum(found["confusion"]) == 30


def test_a_file_of_embeddings_is_classified(tmp_path):
    X, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"])
    np.savez(tmp_path / "iris.npz", x_train=X[::2], y_train=y[::2], x_test=X[1::2], y_test=y[1::2], classes=names)
    found = figures(tmp_path, tmp_path / "iris.npz")
    assert found["classes"] == ["a", "b", "c"]
    assert found["tested"]["isda"]["error"] < 10


def forged(path):
    """A model whose array says that it has a million million entries."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("huge.npy", "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
        np.lib.format.write_array_header_1_0(file, header)


@pytest.mark.parametrize("damage", ["text", "forged"])
def test_a_damaged_or_forged_model_is_refused_in_a_sentence(animals, tmp_path, damage):
    animals.to_csv(tmp_path / "animals.csv", index=False)
    path = tmp_path / "model.skops"
    if damage == "forged":
        forged(path)
    else:
        path.write_text("not a model")
    with pytest.raises(SystemExit, match="must be a model saved by isda classify --save"):
        main(["classify", str(tmp_path / "animals.csv"), "--model", str(path)])


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("a,b\n", [], "rows"),
        ("a,b\n1,x\n2,x\n", [], "two classes"),
        ("a,b\n1,x\n2,y\n3,x\n4,y\n", ["--label", "c"], "no column 'c'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, content, words, message):
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(SystemExit, match=message):
        main(["classify", str(tmp_path / "table.csv"), *words])


def test_embed_writes_a_file_that_classify_reads(tmp_path, capsys):
    words = ["--data", "digits", "--network", "resnet-8", "--train", "60", "--test", "40", "--device", "cpu"]
    main(["embed", *words, "--out", str(tmp_path / "digits.npz")])
    assert "random weights" in capsys.readouterr().err
    with np.load(tmp_path / "digits.npz") as held:
        assert held["x_train"].shape[0] == 60
        assert json.loads(str(held["provenance"]))["network"] == "resnet-8"
    assert figures(tmp_path, tmp_path / "digits.npz")["tested"]["isda"]["error"] < 90
