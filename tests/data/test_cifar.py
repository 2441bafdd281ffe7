"""CIFAR archives: both official versions are read exactly, and a pickle cannot do anything but hold arrays."""

import io
import os
import pickle
import struct

import numpy as np
import pytest
import torch

from isda.lab.data.readers.small_images import CIFAR10, CIFAR100, read_cifar_binary, read_cifar_python


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 wrote into the official archives: every string as a BINSTRING."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = save_string
    dispatch[str] = save_string


def python2_pickle(value):
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def cifar100_images():
    random = np.random.default_rng(1)
    return random.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8), random.integers(0, 100, 5, dtype=np.uint8)


def test_binary_cifar10_is_read_exactly(cifar10_binary):
    path, images, labels = cifar10_binary
    arrays = read_cifar_binary(path, CIFAR10)
    np.testing.assert_array_equal(arrays.x_train, images[:20])
    np.testing.assert_array_equal(arrays.y_train, labels[:20])
    np.testing.assert_array_equal(arrays.x_test, images[20:])
    np.testing.assert_array_equal(arrays.y_test, labels[20:])
    assert arrays.x_train.dtype == torch.uint8
    assert arrays.y_train.dtype == torch.int64
    assert arrays.classes[0] == "airplane"
    assert len(arrays.classes) == 10


def test_binary_cifar100_uses_the_fine_label(tmp_path, write_tar, cifar100_images):
    images, fine = cifar100_images
    coarse = np.full_like(fine, 255)
    records = np.concatenate([coarse[:, None], fine[:, None], images.reshape(5, -1)], axis=1)
    names = [f"class_{i}" for i in range(100)]
    members = {
        "train.bin": records[:3].tobytes(),
        "test.bin": records[3:].tobytes(),
        "fine_label_names.txt": "\n".join(names).encode(),
        "coarse_label_names.txt": b"aquatic_mammals\n",
    }
    arrays = read_cifar_binary(write_tar(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", members), CIFAR100)
    np.testing.assert_array_equal(arrays.x_train, images[:3])
    np.testing.assert_array_equal(arrays.y_train, fine[:3])
    np.testing.assert_array_equal(arrays.y_test, fine[3:])
    assert arrays.classes == tuple(names)


def test_python_cifar10_equals_the_binary_version(tmp_path, write_tar, cifar10_binary):
    path, images, labels = cifar10_binary
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = {
        name: python2_pickle(
            {
                "batch_label": f"batch {i}",
                "labels": labels[4 * i : 4 * i + 4].tolist(),
                "data": images[4 * i : 4 * i + 4].reshape(4, -1),
                "filenames": ["a.png"] * 4,
            }
        )
        for i, name in enumerate(names)
    }
    binary = read_cifar_binary(path, CIFAR10)
    members["batches.meta"] = python2_pickle({"num_cases_per_batch": 4, "label_names": list(binary.classes)})
    python = read_cifar_python(write_tar(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", members), CIFAR10)
    for got, expected in zip(python[:4], binary[:4], strict=True):
        assert torch.equal(got, expected)
    assert python.classes == binary.classes


@pytest.mark.parametrize("dump", [python2_pickle, pickle.dumps], ids=["python 2", "today's python"])
def test_python_cifar100_uses_the_fine_label(tmp_path, write_tar, cifar100_images, dump):
    images, fine = cifar100_images

    def batch(part):
        pixels, labels = images[part].reshape(-1, 3072), fine[part].tolist()
        return dump({b"data": pixels, b"fine_labels": labels, b"coarse_labels": [0] * len(labels)})

    members = {
        "train": batch(slice(3)),
        "test": batch(slice(3, 5)),
        "meta": dump({b"fine_label_names": [f"class_{i}".encode() for i in range(100)]}),
    }
    arrays = read_cifar_python(write_tar(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", members), CIFAR100)
    np.testing.assert_array_equal(arrays.x_train, images[:3])
    np.testing.assert_array_equal(arrays.y_test, fine[3:])
    assert arrays.classes[99] == "class_99"


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_something_is_refused(tmp_path, write_tar):
    target = tmp_path / "made by the pickle"
    members = dict.fromkeys(["train", "test", "meta"], pickle.dumps(Harmful(str(target)), protocol=2))
    archive = write_tar(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", members)
    with pytest.raises(ValueError, match=r"cifar-100-python.tar.gz.* asks for posix.mkdir|asks for nt.mkdir"):
        read_cifar_python(archive, CIFAR100)
    assert not target.exists()


def test_a_truncated_archive_is_one_sentence(cifar10_binary):
    path, _, _ = cifar10_binary
    path.write_bytes(path.read_bytes()[:-40_000])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is damaged or incomplete"):
        read_cifar_binary(path, CIFAR10)


def test_an_archive_without_a_batch_names_it(tmp_path, write_tar):
    archive = write_tar(tmp_path / "cifar-100-binary.tar.gz", "x", {"train.bin": b"", "fine_label_names.txt": b"a"})
    with pytest.raises(ValueError, match=r"does not hold test\.bin"):
        read_cifar_binary(archive, CIFAR100)


def test_half_a_record_is_refused(tmp_path, write_tar):
    members = {"train.bin": bytes(3074 + 7), "test.bin": bytes(3074), "fine_label_names.txt": b"a"}
    archive = write_tar(tmp_path / "cifar-100-binary.tar.gz", "x", members)
    with pytest.raises(ValueError, match=r"train\.bin must hold records of 3074 bytes, got 3081"):
        read_cifar_binary(archive, CIFAR100)
