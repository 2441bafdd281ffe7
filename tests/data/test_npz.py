"""Data sets in .npz files: what is accepted, and one clear sentence for everything else."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

import isda.lab.data
from isda.lab.data.readers.npz import npz_contents, read_npz


def arrays(**changes):
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": random.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8),
        "y_test": np.array([2, 1, 0]),
        "classes": np.array(["cat", "dog", "owl"]),
    } | changes


def write(path, **changes):
    np.savez(path, **{key: value for key, value in arrays(**changes).items() if value is not None})
    return path


def test_colour_images_become_channels_first(tmp_path):
    data = isda.lab.data.load(write(tmp_path / "pets.npz"))
    assert data.x_train.shape == (6, 3, 4, 5)
    np.testing.assert_array_equal(data.x_train.permute(0, 2, 3, 1), arrays()["x_train"])
    assert data.y_test.tolist() == [2, 1, 0]
    assert data.classes == ("cat", "dog", "owl")
    assert data.name == "pets"


def test_grey_images_may_lack_the_channel_axis(tmp_path):
    grey = {"x_train": np.zeros((6, 4, 5), np.uint8), "x_test": np.ones((3, 4, 5), np.uint8)}
    assert read_npz(write(tmp_path / "a.npz", **grey)).x_test.shape == (3, 1, 4, 5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_type_become_int64(tmp_path, dtype):
    read = read_npz(write(tmp_path / "a.npz", y_train=np.array([0, 1, 2, 0, 1, 2], dtype)))
    assert read.y_train.dtype == torch.int64


def test_without_class_names_the_training_labels_count_them(tmp_path):
    assert read_npz(write(tmp_path / "a.npz", classes=None)).classes == ("0", "1", "2")


def test_class_names_may_be_bytes(tmp_path):
    assert read_npz(write(tmp_path / "a.npz", classes=np.array([b"a", b"b", b"c"]))).classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"must hold x_train, y_train, x_test, y_test; y_test is missing"),
        ({"x_train": np.zeros((6, 3, 32, 32), np.uint8)}, r"x_train of .* C in 1\.\.4, got uint8 .* \(6, 3, 32, 32\)"),
        ({"x_train": np.zeros((6, 60), np.uint8)}, r"x_train of .* must be uint8 of shape .* got .* \(6, 60\)"),
        ({"x_test": np.zeros((3, 4, 5, 3))}, r"x_test of .* must be uint8 .* got float64"),
        ({"x_test": np.zeros((3, 8, 8, 3), np.uint8)}, r"must have one shape .*, got \(3, 4, 5\) and \(3, 8, 8\)"),
        ({"y_train": np.zeros(5, int)}, r"y_train of .* shape \(6,\), one label per image, got .* \(5,\)"),
        ({"y_train": np.zeros((6, 1), int)}, r"y_train of .* must be integers of shape \(N,\), got .* \(6, 1\)"),
        ({"y_train": np.zeros(6)}, r"y_train of .* must be integers of shape \(N,\), got float64"),
        ({"y_train": np.array([0, 1, 2, 0, 7, 2])}, r"y_train of .* holds the label 7 at position 4; .* in 0\.\.2"),
        ({"y_test": np.array([2, -1, 0])}, r"y_test of .* holds the label -1 at position 1; .* in 0\.\.2"),
        ({"y_test": np.array([2, 3, 0]), "classes": None}, r"y_test of .* the label 3 at position 1; .* in 0\.\.2"),
        ({"classes": np.array([1.0, 2.0, 3.0])}, r"classes of .* must be names of shape \(C,\), got float64"),
        ({"classes": np.array(["a", None, "c"])}, r"no \.npz archive of plain arrays"),
        ({"y_train": np.array(["a", "b", "c"] * 2)}, r"y_train of .* must be integers of shape \(N,\), got <U1"),
        (
            {"y_train": np.array([0, 1, 2, 0, 4294967295, 2]), "classes": None},
            r"y_train of .* holds the label 4294967295 at position 4; without `classes` and with 6 images .* in 0\.\.5",
        ),
        (
            {"y_test": np.array([0, 2**64 - 1, 1], np.uint64)},
            r"y_test of .* holds the label 18446744073709551615 at position 1; with 3 classes labels must be in 0\.\.2",
        ),
        (
            {"x_train": np.zeros((0, 4, 5, 3), np.uint8), "y_train": np.zeros(0, int)},
            r"y_train of .* is empty; at least one image is needed",
        ),
    ],
)
def test_a_file_that_is_no_data_set_says_why(tmp_path, changes, message):
    path = write(tmp_path / "broken.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        isda.lab.data.load(path)
    assert "broken" in str(caught.value)
    assert "\n" not in str(caught.value)


def rewritten(path, key, content):
    """The archive with other bytes as one of its arrays."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, old in members.items():
            archive.writestr(name, content if name == f"{key}.npy" else old)
    return path


def header(shape, dtype):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("read", [read_npz, npz_contents])
@pytest.mark.parametrize(
    ("key", "shape", "dtype", "claimed"),
    [
        ("x_train", (10**12, 32, 32, 3), "|u1", 3072 * 10**12),
        ("y_train", (10**14,), "<i8", 8 * 10**14),
        ("classes", (3,), "<U100000000", 1_200_000_000),
        ("x_test", (-3, 4, 5, 3), "|u1", -180),
    ],
)
def test_a_header_that_claims_more_than_the_file_holds_is_not_believed(tmp_path, read, key, shape, dtype, claimed):
    path = rewritten(write(tmp_path / "a.npz"), key, header(shape, dtype) + bytes(180))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"a\.npz is damaged.*{key}\.npy claims {claimed} bytes .* file holds 180"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_a_directory_that_claims_more_than_the_file_has_is_not_believed(tmp_path):
    huge = header((10**9, 4, 5, 3), "|u1")
    path = rewritten(write(tmp_path / "a.npz"), "x_train", huge)
    sizes = len(huge).to_bytes(4, "little") * 2
    claimed = len(huge).to_bytes(4, "little") + (2**32 - 2).to_bytes(4, "little")
    raw = path.read_bytes()
    assert raw.count(sizes) == 2
    path.write_bytes(raw.replace(sizes, claimed))
    with pytest.raises(ValueError, match=r"a\.npz is damaged.*x_train\.npy claims"):
        read_npz(path)


@pytest.mark.parametrize("labels", [np.array(["a", "b", "c"] * 2), np.array([0, 1, 2, 0, 4294967295, 2])])
def test_contents_with_labels_that_are_none_are_one_sentence(tmp_path, labels):
    with pytest.raises(ValueError, match=r"y_train of .*a\.npz"):
        npz_contents(write(tmp_path / "a.npz", y_train=labels, classes=None))


@pytest.mark.parametrize("keep", [-200, 1000, 0])
def test_a_truncated_file_is_one_sentence(tmp_path, keep):
    path = write(tmp_path / "cut.npz")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cut\.npz is damaged, incomplete or no \.npz archive"):
        read_npz(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz does not exist"):
        isda.lab.data.load(tmp_path / "nowhere.npz")


@pytest.mark.parametrize("classes", [None, np.array(["cat", "dog", "owl"])])
def test_contents_are_told_without_reading_the_images(tmp_path, classes):
    assert npz_contents(write(tmp_path / "a.npz", classes=classes)) == (6, 3, 3, 3, (4, 5))


def test_contents_of_a_file_without_images_say_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"must hold x_train, y_train, x_test, y_test; x_train is missing"):
        npz_contents(write(tmp_path / "a.npz", x_train=None))
