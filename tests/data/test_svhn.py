"""SVHN's Matlab files: axes and labels as documented by its authors."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from isda.lab.data.readers.small_images import read_mat, read_svhn


def write_mat(path, count, seed, labels=None):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    labels = random.integers(1, 11, (count, 1)).astype(np.uint8) if labels is None else np.array(labels)[:, None]
    savemat(path, {"X": pixels, "y": labels})
    return pixels, labels


def test_axes_are_reordered_and_label_10_is_the_digit_0(tmp_path):
    pixels, _ = write_mat(tmp_path / "train_32x32.mat", 4, 0, labels=[10, 1, 9, 10])
    images, labels = read_mat(tmp_path / "train_32x32.mat")
    assert labels.tolist() == [0, 1, 9, 0]
    assert images.shape == (4, 3, 32, 32)
    assert images.is_contiguous()
    # Row 5, column 7, blue, third image.
    assert images[2, 2, 5, 7] == pixels[5, 7, 2, 2]


def test_extra_images_follow_the_training_images(tmp_path):
    train, test, extra = (tmp_path / f"{split}_32x32.mat" for split in ("train", "test", "extra"))
    for seed, path in enumerate((train, test, extra)):
        write_mat(path, 3 + seed, seed)
    plain, more = read_svhn(train, test), read_svhn(train, test, extra)
    assert len(plain.x_train) == 3
    assert len(more.x_train) == 3 + 5
    assert torch.equal(more.x_train[:3], plain.x_train)
    assert torch.equal(more.y_train[3:], read_mat(extra)[1])
    assert torch.equal(more.x_test, plain.x_test)


def test_a_truncated_file_is_one_sentence(tmp_path):
    path = tmp_path / "train_32x32.mat"
    write_mat(path, 4, 0)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"train_32x32\.mat is damaged or incomplete"):
        read_mat(path)


def test_a_file_without_labels_says_so(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8)})
    with pytest.raises(ValueError, match="must hold the variables X and y, y is missing"):
        read_mat(tmp_path / "train_32x32.mat")


def test_a_file_of_another_shape_says_so(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.ones((2, 1))})
    with pytest.raises(
        ValueError, match=r"X must be uint8 of shape \(32, 32, 3, 2\).*got uint8 of shape \(2, 32, 32, 3\)"
    ):
        read_mat(tmp_path / "train_32x32.mat")
