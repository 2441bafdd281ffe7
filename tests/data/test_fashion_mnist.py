"""Fashion-MNIST's gzipped IDX files."""

import gzip
import struct

import numpy as np
import pytest

import isda.lab.data
from isda.lab.data.readers.small_images import read_idx


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw"])
def test_the_four_files_make_a_data_set(tmp_path, folder):
    random = np.random.default_rng(0)
    expected = {}
    for split, count in (("train", 6), ("t10k", 3)):
        expected[split] = random.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8)
        write_idx(tmp_path / folder / f"{split}-images-idx3-ubyte.gz", expected[split][0])
        write_idx(tmp_path / folder / f"{split}-labels-idx1-ubyte.gz", expected[split][1])
    data = isda.lab.data.load("fashion-mnist", tmp_path, download=False)
    np.testing.assert_array_equal(data.x_train[:, 0], expected["train"][0])
    np.testing.assert_array_equal(data.y_train, expected["train"][1])
    np.testing.assert_array_equal(data.x_test[:, 0], expected["t10k"][0])
    np.testing.assert_array_equal(data.y_test, expected["t10k"][1])
    assert data.x_train.shape[1:] == (1, 28, 28)
    assert data.classes[9] == "Ankle boot"


def test_a_label_out_of_range_is_named(tmp_path):
    for split in ("train", "t10k"):
        write_idx(tmp_path / "fashion-mnist" / f"{split}-images-idx3-ubyte.gz", np.zeros((3, 28, 28), np.uint8))
        write_idx(tmp_path / "fashion-mnist" / f"{split}-labels-idx1-ubyte.gz", np.array([9, 10, 0], np.uint8))
    with pytest.raises(ValueError, match=r"y_train of fashion-mnist holds the label 10 at position 1; .* in 0\.\.9"):
        isda.lab.data.load("fashion-mnist", tmp_path)


def test_a_truncated_file_is_one_sentence(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    write_idx(path, np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is damaged or incomplete"):
        read_idx(path, 3)


def test_labels_where_images_are_expected_are_refused(tmp_path):
    write_idx(tmp_path / "file.gz", np.zeros(20, np.uint8))
    with pytest.raises(ValueError, match=r"must be an IDX file of bytes with 3 dimensions"):
        read_idx(tmp_path / "file.gz", 3)


def test_fewer_bytes_than_the_header_promises_are_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", 10) + bytes(9)))
    with pytest.raises(ValueError, match=r"must hold 10 bytes for the shape \(10,\), got 9"):
        read_idx(path, 1)
