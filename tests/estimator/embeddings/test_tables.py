"""Rows from files that anybody may have written."""

import io
import warnings
import zipfile

import numpy as np
import pytest

from isda.estimator.embedding_files import read_csv_rows, read_npz_rows
from isda.estimator.embedding_tables import read_tables

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


def test_minus_one_without_class_names_is_said_to_be_no_label(tmp_path):
    file = npz(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X, y_test=np.abs(Y))
    with pytest.warns(
        UserWarning, match="1 of 6 rows in y_train of .* have the label -1 and are taken for rows with"
    ) as told:
        read_npz_rows(file)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_npz_rows(npz(tmp_path / "b.npz", x_train=X, y_train=Y, classes=["cat", "dog"]))
        rows, _ = read_npz_rows(npz(tmp_path / "c.npz", x_train=X, y_train=Y.astype(str)))
    assert rows.names.tolist() == ["0", "1", "0", "1", "-1", "1"]


@pytest.mark.filterwarnings("ignore:.*have the label -1")
@pytest.mark.parametrize(
    "labels", [Y, Y.astype(np.int8), np.array(["0", "1", "0", "1", "", "1"]), np.array([b"0", b"1"] * 2 + [b" ", b"1"])]
)
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
        (
            {"x_train": X, "y_train": Y, "classes": ["cat", "cat"]},
            "classes of .* must be different names, got 'cat' at the positions 0 and 1",
        ),
        ({"x_train": X, "y_train": Y, "classes": ["cat", ""]}, "classes of .* got an empty one at position 1"),
        ({"x_train": X, "y_train": Y, "classes": [" ", "cat"]}, "classes of .* got an empty one at position 0"),
        ({"x_train": X, "y_train": Y, "classes": np.array([b"\xe8", b"\xe9"])}, "classes of .* must be names in UTF-8"),
        ({"x_train": X, "y_train": Y, "classes": np.array([], "U1")}, r"classes of .* must be names of shape \(C,\)"),
        (
            {"x_train": X, "y_train": np.array(list("ababac")), "classes": ["a", "b"]},
            "y_train of .* must hold names in classes, got 'c'",
        ),
        (
            {"x_train": X, "y_train": np.array([b"\xe8", b"\xe9"] * 3)},
            "y_train of .* must be names in UTF-8",
        ),
        ({"x_train": X, "y_train": Y, "x_test": X}, "must hold y_test"),
        ({"x_train": np.array([[object()]]), "y_train": Y}, "Object arrays cannot be loaded"),
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
    with pytest.raises(ValueError, match="is damaged"):
        read_npz_rows(tmp_path / "c.npz")
    with pytest.raises(FileNotFoundError, match=r"d\.npz does not exist"):
        read_npz_rows(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b,kind\n1,2,cat\n3,4,dog\n", ["cat", "dog"]),
        ("1.0,2,cat\n3,4,dog\n", ["cat", "dog"]),
        ("1,2,cat\n3,4,cat\n", ["cat", "cat"]),
        ("0,1,label\n1,2,cat\n3,4,dog\n", ["cat", "dog"]),
        ("label,3,17\ncat,1,2\ndog,3,4\n", ["cat", "dog"]),
        ("Label;a;b\ncat;1;2\ndog;3;4\n", ["cat", "dog"]),
        ('a;"b,c";kind\n1;2;"x,y"\n3;4;dog\n', ["x,y", "dog"]),
        ('a,b,kind\n1,2,"x;y"\n3,4,"two\nlines"\n', ["x;y", "two\nlines"]),
        ("label;a;b\ncat;1;2\ndog;3;4\n", ["cat", "dog"]),
        ('\ufeffa\tb\tkind\r\n1\t2\t"cat"\r\n\r\n3\t4\tdog\r\n', ["cat", "dog"]),
        ("a,b,kind\n 1, 2, cat\n3e0,4.0,\n", ["cat", ""]),
    ],
)
def test_tables_as_spreadsheets_write_them(tmp_path, content, expected):
    rows = read_csv_rows(text(tmp_path / "a.csv", content))
    assert rows.names.tolist() == expected
    assert rows.features.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_encodings_line_ends_and_delimiters(tmp_path, encoding, end, delimiter):
    content = end.join(["a,b,kind", "1,2,Käse", "3,4,", ""]).replace(",", delimiter)
    rows = read_csv_rows(text(tmp_path / "a.csv", content, encoding))
    assert (rows.names.tolist(), rows.features.tolist()) == (["Käse", ""], [[1, 2], [3, 4]])
    assert (rows.table.features, rows.table.label) == (("a", "b"), "kind")


def test_an_embedding_written_by_pandas_has_its_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    features, labels = np.arange(20.0).reshape(2, 10), ["cat", "dog"]
    frame, file = pandas.DataFrame(features), tmp_path / "a.csv"
    for name, word in (("label", None), ("kind", None), ("kind", "kind"), (10, None)):
        frame.assign(kind=labels).rename(columns={"kind": name}).to_csv(file, index=False)
        rows = read_csv_rows(file, word)
        assert (rows.names.tolist(), rows.features.tolist()) == (labels, features.tolist())
        assert rows.table.features == tuple(map(str, range(10)))
    frame.assign(label=labels).to_csv(file)
    with pytest.raises(ValueError, match=r"must have a name, got none for column 1 \(perhaps .* --ignore ''"):
        read_csv_rows(file)
    assert read_csv_rows(file, ignore=[""]).features.tolist() == features.tolist()


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
        ("a|kind\n1|cat\n", {}, "separated by a comma, a semicolon or a tab"),
        ("0,1,kind\n.5,.1,cat\n.2,.7,dog\n", {}, "first line of .* may hold names of columns or values: got 0, 1, k"),
        ("0,1,2\n.5,.1,1\n.2,.7,2\n", {}, "first line of .* may hold names of columns or values"),
        ("3,17,kind\n.5,.1,cat\n", {}, "first line of .* may hold names"),
        ("label,a,label\n1,2,cat\n", {}, "different names, got 'label' for the columns 1 and 3"),
        ("a,a,kind\n1,2,cat\n", {}, "different names, got 'a' for the columns 1 and 2"),
        ("a,,kind\n1,2,cat\n", {}, "must have a name, got none for column 2"),
        ("a,kind\n1,cat\n", {"label": "kind", "ignore": ["kind"]}, "labels must not be left out"),
        ("a;kind\n1,5;cat\n2,5;dog\n", {}, "'a' in line 2 .* got '1,5'; write decimals with a point"),
        ("1,5;cat\n2,5;dog\n", {}, "'1' in line 1 .* got '1,5'; write decimals with a point"),
        ("a,kind\n1_000,cat\n", {}, "must be a number, got '1_000'"),
        ('a,kind\n1,"cat\n2,dog\n3,cat\n', {}, "cannot be read as a table: line"),
        ("a,kind\n1,c\0at\n", {}, "it holds NUL characters"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, content, words, told):
    with pytest.raises(ValueError, match=told):
        read_csv_rows(text(tmp_path / "a.csv", content), **words)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16-le", "utf-32"])
def test_another_encoding_is_refused(tmp_path, encoding):
    with pytest.raises(ValueError, match="cannot be read as a table in UTF-8"):
        read_csv_rows(text(tmp_path / "a.csv", "a,kind\n1,Käse\n", encoding))


def test_the_last_column_that_is_not_left_out_has_the_labels(tmp_path):
    rows = read_csv_rows(text(tmp_path / "a.csv", "a,kind,id,id\n1,cat,x1,y1\n2,dog,x2,y2\n"), ignore=["id"])
    assert (rows.names.tolist(), rows.features.tolist()) == (["cat", "dog"], [[1], [2]])


def test_columns_of_two_tables_are_matched_by_name(tmp_path):
    learnt = text(tmp_path / "a.csv", "a,b,kind\n1,2,cat\n3,4,dog\n")
    for content in ("kind;b;a\ncat;6;5\n;8;7\n", "b,kind,a\n6,cat,5\n8,,7\n"):
        tables = read_tables(learnt, text(tmp_path / "b.csv", content))
        assert (tables.test.names.tolist(), tables.test.features.tolist()) == (["cat"], [[5, 6]])
        assert tables.unlabelled[1].features.tolist() == [[7, 8]]
    unlabelled = read_tables(learnt, text(tmp_path / "b.csv", "b,a\n6,5\n8,7\n"))
    assert (len(unlabelled.test), unlabelled.unlabelled[1].features.tolist()) == (0, [[5, 6], [7, 8]])
    left_out = text(tmp_path / "c.csv", "id,a,b,kind\nx,1,2,cat\ny,3,4,dog\n")
    tables = read_tables(left_out, text(tmp_path / "b.csv", "b,kind,a\n6,cat,5\n"), ignore=["id"])
    assert tables.test.features.tolist() == [[5, 6]]


def test_numbers_are_names_where_the_first_table_has_them(tmp_path):
    learnt = text(tmp_path / "a.csv", "0,1,label\n1,2,cat\n3,4,dog\n")
    tables = read_tables(learnt, text(tmp_path / "b.csv", "1,0\n6,5\n"))
    assert tables.unlabelled[1].features.tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a,c,kind\n1,2,cat\n", "b.csv must have the columns of .*a.csv, got none called 'b'; it has a, c"),
        ("a,b,c,kind\n1,2,3,cat\n", "must have the columns of .*a.csv and no others, got 'c'; remove it"),
        ("a,b,sort\n1,2,cat\n", "and no others, got 'sort'"),
        ("1.5,2.5,cat\n", "got none called 'a'; it has 1, 2, 3"),
        ("a,a,b,kind\n1,2,3,cat\n", "different names, got 'a'"),
        ("a,b,kind\n1,1e200,cat\n", r"b.csv must be smaller than 6\.4e\+147 in magnitude, .* got 1e\+200 in row 2"),
    ],
)
def test_tables_with_other_columns_are_refused(tmp_path, content, told):
    learnt = text(tmp_path / "a.csv", "a,b,kind\n1,2,cat\n3,4,dog\n")
    with pytest.raises(ValueError, match=told):
        read_tables(learnt, text(tmp_path / "b.csv", content))


def test_a_share_of_each_class_is_held_out(tmp_path):
    features, labels = np.arange(60.0).reshape(30, 2), np.repeat([0, 1, -1], 10)
    file = npz(tmp_path / "a.npz", x_train=features, y_train=labels, classes=["cat", "dog"])
    tables = read_tables(file, split=0.3)
    assert tables.held_out
    assert np.unique(tables.test.names, return_counts=True)[1].tolist() == [3, 3]
    together = np.concatenate([tables.train.features, tables.test.features])
    assert sorted(together.tolist()) == features[:20].tolist()
    assert [len(rows) for rows in tables.unlabelled] == [10]
    assert tables.unlabelled[0].row_numbers.tolist() == list(range(21, 31))
    again, other = read_tables(file, split=0.3), read_tables(file, split=0.3, seed=1)
    assert (again.test.features == tables.test.features).all()
    assert (other.test.features != tables.test.features).any()


def test_test_rows_come_from_the_file_or_from_another(tmp_path):
    file = npz(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], classes=["cat", "dog"])
    assert len(read_tables(file).test) == 2
    table = text(tmp_path / "b.csv", "a,b,kind\n1,2,dog\n3,4,\n5,6,cat\n")
    tables = read_tables(file, table)
    assert tables.test.names.tolist() == ["dog", "cat"]
    assert [len(rows) for rows in tables.unlabelled] == [1, 1]
    assert tables.unlabelled[1].row_numbers.tolist() == [3]
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
        read_tables(npz(tmp_path / "b.npz", x_train=X, y_train=np.full(6, -1), classes=["cat", "dog"]))
    pair = npz(tmp_path / "c.npz", x_train=X[:2], y_train=[0, 1])
    with pytest.raises(ValueError, match="must have two rows of a class to hold one out, got 2 rows"):
        read_tables(pair)
    two = npz(tmp_path / "d.npz", x_train=X, y_train=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"leave training rows of every class, got 0\.9, which leaves no"):
        read_tables(two, split=0.9)
    single = npz(tmp_path / "e.npz", x_train=X, y_train=[0, 0, 0, 0, 0, 1])
    assert "1" in read_tables(single, split=0.4).train.names
    with pytest.raises(ValueError, match="split must lie strictly between 0 and 1, got 1"):
        read_tables(pair, split=1)
    with pytest.raises(ValueError, match="label and ignore name columns of a table"):
        read_tables(pair, label="kind")
