"""Rows from files that anybody may have written."""

import io
import zipfile

import numpy as np
import pytest

from isda.embeddings.csv_files import read_csv_rows
from isda.embeddings.npz_files import read_npz_rows
from isda.embeddings.tables import read_tables

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, -1, 1])


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def text(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return path


def test_labels_count_the_class_names_and_minus_one_is_none(tmp_path):
    train, test = read_npz_rows(npz(tmp_path / "a.npz", x_train=X, y_train=Y, classes=["cat", "dog"]))
    assert train.names.tolist() == ["cat", "dog", "cat", "dog", "", "dog"]
    assert train.labelled.tolist() == [True] * 4 + [False, True]
    assert test is None
    assert train.features.tolist() == X.tolist()


@pytest.mark.parametrize("labels", [Y, Y.astype(np.int8), np.array(["0", "1", "0", "1", "", "1"])])
def test_without_class_names_labels_are_their_own(tmp_path, labels):
    train, test = read_npz_rows(npz(tmp_path / "a.npz", x_train=X, y_train=labels, x_test=X[:1], y_test=labels[:1]))
    assert train.names.tolist() == ["0", "1", "0", "1", "", "1"]
    assert test.names.tolist() == ["0"]


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"x_train": X}, "must hold y_train to be a file of embeddings; it holds x_train"),
        ({"x_train": X, "y_train": Y[:3]}, r"y_train of .* of shape \(6,\), got int64 of shape \(3,\)"),
        ({"x_train": X[0], "y_train": Y}, r"x_train of .* must be numbers of shape \(N, A\)"),
        ({"x_train": X, "y_train": Y + 0.5}, "must be integers or names"),
        (
            {"x_train": X, "y_train": Y + 1, "classes": ["cat", "dog"]},
            "holds the label 2 at position 1; with 2 classes",
        ),
        ({"x_train": X, "y_train": Y - 1, "classes": ["cat", "dog"]}, "holds the label -2 at position 4"),
        ({"x_train": X, "y_train": Y, "classes": [1.0]}, "classes of .* must be names"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "must hold y_test"),
        ({"x_train": np.array([[object()]]), "y_train": Y}, "holds Python objects"),
    ],
)
def test_archives_of_something_else_are_refused(tmp_path, arrays, told):
    with pytest.raises(ValueError, match=told):
        read_npz_rows(npz(tmp_path / "a.npz", **arrays))


def test_damaged_archives_are_refused(tmp_path):
    whole = npz(tmp_path / "a.npz", x_train=X, y_train=Y).read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        read_npz_rows(tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 2)})
        archive.writestr("x_train.npy", stream.getvalue())
    with pytest.raises(ValueError, match="claims 16000000000000 bytes"):
        read_npz_rows(tmp_path / "c.npz")
    with pytest.raises(FileNotFoundError, match=r"d\.npz is not a file"):
        read_npz_rows(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b,kind\n1,2,cat\n3,4,dog\n", ["cat", "dog"]),
        ("1,2,cat\n3,4,dog\n", ["cat", "dog"]),
        ("label;a;b\ncat;1;2\ndog;3;4\n", ["cat", "dog"]),
        ('\ufeffa\tb\tkind\r\n1\t2\t"cat"\r\n\r\n3\t4\tdog\r\n', ["cat", "dog"]),
        ("a,b,kind\n 1, 2, cat\n3e0,4.0,\n", ["cat", ""]),
    ],
)
def test_tables_as_spreadsheets_write_them(tmp_path, content, expected):
    rows = read_csv_rows(text(tmp_path / "a.csv", content))
    assert rows.names.tolist() == expected
    assert rows.features.tolist() == [[1, 2], [3, 4]]


def test_columns_are_named_or_left_out(tmp_path):
    file = text(tmp_path / "a.csv", "id,kind,a\nx17,cat,1\nx18,dog,2\n")
    rows = read_csv_rows(file, "kind", ["id"])
    assert (rows.names.tolist(), rows.features.tolist()) == (["cat", "dog"], [[1], [2]])
    assert rows.row_numbers.tolist() == [2, 3]
    without = read_csv_rows(text(tmp_path / "b.csv", "17,cat,1\n18,dog,2\n"), "2", ["1"])
    assert (without.names.tolist(), without.features.tolist()) == (["cat", "dog"], [[1], [2]])


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        ("", {}, "it is empty"),
        ("a,b\n", {}, "at least one row below the names"),
        ("a,kind\n1,cat\n2\n", {}, r"line 3 of .* must have 2 cells, got 1"),
        ("a,kind\n1,cat\nx,dog\n", {}, "'a' in line 3 of .* must be a number, got 'x'; --ignore leaves a column out"),
        ("a,kind\n,cat\n", {}, "'a' in line 2 of .* must be a number, got ''"),
        ("a,kind\ninf,cat\n", {}, "must be a number, got 'inf'"),
        ("a,kind\n1,cat\n", {"label": "kin"}, "has no column 'kin'; did you mean 'kind'"),
        ("a,kind\n1,cat\n", {"ignore": ["b"]}, "has no column 'b'"),
        ("kind\ncat\n", {}, "must have a column of features beside its labels"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, content, words, told):
    with pytest.raises(ValueError, match=told):
        read_csv_rows(text(tmp_path / "a.csv", content), **words)


def test_another_encoding_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a table in UTF-8"):
        read_csv_rows(text(tmp_path / "a.csv", "a,kind\n1,Käse\n", "latin-1"))


def test_a_share_of_each_class_is_held_out(tmp_path):
    features, labels = np.arange(60.0).reshape(30, 2), np.repeat([0, 1, -1], 10)
    file = npz(tmp_path / "a.npz", x_train=features, y_train=labels)
    tables = read_tables(file, split=0.3)
    assert tables.held_out
    assert np.unique(tables.judged.names, return_counts=True)[1].tolist() == [3, 3]
    together = np.concatenate([tables.learnt.features, tables.judged.features])
    assert sorted(together.tolist()) == features[:20].tolist()
    assert [len(rows) for rows in tables.asked] == [10]
    assert tables.asked[0].row_numbers.tolist() == list(range(21, 31))
    again, other = read_tables(file, split=0.3), read_tables(file, split=0.3, seed=1)
    assert (again.judged.features == tables.judged.features).all()
    assert (other.judged.features != tables.judged.features).any()


def test_test_rows_come_from_the_file_or_from_another(tmp_path):
    file = npz(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], classes=["cat", "dog"])
    assert len(read_tables(file).judged) == 2
    table = text(tmp_path / "b.csv", "a,b,kind\n1,2,dog\n3,4,\n5,6,cat\n")
    tables = read_tables(file, table)
    assert tables.judged.names.tolist() == ["dog", "cat"]
    assert [len(rows) for rows in tables.asked] == [1, 1]
    assert tables.asked[1].row_numbers.tolist() == [3]
    assert not tables.held_out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a,kind\n1,cat\n", "must have the 2 features"),
        ("a,b,kind\n1,2,cow\n", "test must have classes of .*, got 'cow'"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, content, told):
    file = npz(tmp_path / "a.npz", x_train=X, y_train=Y, classes=["cat", "dog"])
    with pytest.raises(ValueError, match=told):
        read_tables(file, text(tmp_path / "b.csv", content))


def test_too_few_labels_are_refused(tmp_path):
    one = npz(tmp_path / "a.npz", x_train=X, y_train=np.zeros(6, int))
    with pytest.raises(ValueError, match="labelled rows of at least two classes, got 6 of '0'"):
        read_tables(one)
    with pytest.raises(ValueError, match="got none"):
        read_tables(npz(tmp_path / "b.npz", x_train=X, y_train=np.full(6, -1)))
    pair = npz(tmp_path / "c.npz", x_train=X[:2], y_train=[0, 1])
    with pytest.raises(ValueError, match=r"leave rows to learn from and to judge by, got 0\.2 of 0 rows"):
        read_tables(pair)
    two = npz(tmp_path / "d.npz", x_train=X, y_train=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"leave rows of every class to learn from, got 0\.9: it leaves no"):
        read_tables(two, split=0.9)
    single = npz(tmp_path / "e.npz", x_train=X, y_train=[0, 0, 0, 0, 0, 1])
    assert "1" in read_tables(single, split=0.4).learnt.names
    with pytest.raises(ValueError, match="split must lie strictly between 0 and 1, got 1"):
        read_tables(pair, split=1)
    with pytest.raises(ValueError, match="label and ignore name columns of a table"):
        read_tables(pair, label="kind")
