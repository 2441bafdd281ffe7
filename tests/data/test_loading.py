"""`load`: roots, names, downloads, and what it says when something is missing or damaged."""

import hashlib
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.datasets import imagenet

import isda.lab.data
from isda.lab.data import CATALOGUE
from isda.lab.data.archives import DataFile, data_root
from isda.lab.data.catalogue import FileLayout


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def address(cifar10_binary, monkeypatch):
    """A web server on this machine that serves the small archive."""
    path, _, _ = cifar10_binary
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=path.parent)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def official_cifar10(cifar10_binary, address, monkeypatch):
    """Makes a small archive the official one: its md5 is expected, and it is what is downloaded."""
    path, images, _ = cifar10_binary
    known = CATALOGUE["cifar10"]
    file = DataFile(path.name, hashlib.md5(path.read_bytes()).hexdigest(), address + path.name)
    layout = FileLayout((file,), known.layouts[0].read)
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(known, layouts=(layout, *known.layouts[1:])))
    return path, images


def test_root_is_the_argument_then_the_environment_then_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ISDA_DATA", raising=False)
    assert data_root() == tmp_path / "data"
    monkeypatch.setenv("ISDA_DATA", str(tmp_path / "environment"))
    assert data_root() == tmp_path / "environment"
    assert data_root(tmp_path / "argument") == tmp_path / "argument"


def test_a_missing_set_is_downloaded_once(tmp_path, official_cifar10):
    path, images = official_cifar10
    data = isda.lab.data.load("cifar10", tmp_path / "root")
    np.testing.assert_array_equal(data.x_train, images[:20])
    assert [file.name for file in (tmp_path / "root" / "cifar10").iterdir()] == [path.name]
    path.unlink()
    again = isda.lab.data.load("cifar10", tmp_path / "root")
    assert torch.equal(again.x_train, data.x_train)
    assert again.source == str(tmp_path / "root" / "cifar10" / path.name)


def test_files_directly_in_the_root_are_found(official_cifar10):
    path, _ = official_cifar10
    assert isda.lab.data.load("cifar10", path.parent, download=False).num_classes == 10


def test_a_download_with_another_md5_is_refused_and_not_kept(tmp_path, official_cifar10):
    path, _ = official_cifar10
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileNotFoundError, match=r"cifar10 is not under .* failed: .*corrupted.*; put cifar-10-binary"):
        isda.lab.data.load("cifar10", tmp_path / "root")
    assert list((tmp_path / "root" / "cifar10").iterdir()) == []


def test_a_truncated_archive_on_disk_is_one_sentence_with_both_md5s(official_cifar10):
    path, _ = official_cifar10
    expected = hashlib.md5(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:-1])
    got = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(
        ValueError, match=rf"{path.name} is damaged or incomplete: its md5 is {got} instead of {expected}"
    ):
        isda.lab.data.load("cifar10", path.parent)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100", "svhn", "svhn-extra"])
def test_a_missing_set_says_which_files_to_put_where(tmp_path, monkeypatch, name):
    known = replace(CATALOGUE[name], folders=tuple(folder for folder in CATALOGUE[name].folders if folder[0] != "/"))
    monkeypatch.setitem(CATALOGUE, name, known)
    with pytest.raises(FileNotFoundError) as caught:
        isda.lab.data.load(name, tmp_path, download=False)
    message = str(caught.value)
    assert f"the data set {name} is not under {tmp_path}: put " in message
    assert "\n" not in message
    for layout in known.layouts:
        for file in layout.files:
            assert f"{file.name} (md5 {file.md5})" in message
    assert f"into {tmp_path / known.folders[0]}" in message
    assert f"or {name}.npz" in message


def test_a_failed_download_gives_its_reason_and_the_same_advice(tmp_path, official_cifar10):
    path, _ = official_cifar10
    path.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"and fetching http.*{path.name} failed: HTTP Error 404.*; put cifar-10"
    ):
        isda.lab.data.load("cifar10", tmp_path)


def test_an_npz_with_a_known_name_is_used_with_the_published_statistics(tmp_path):
    random = np.random.default_rng(0)
    arrays = {key: random.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8) for key in ("x_train", "x_test")}
    np.savez(tmp_path / "cifar10.npz", y_train=np.arange(10), y_test=np.arange(10), **arrays)
    data = isda.lab.data.load("cifar10", tmp_path)
    assert data.name == "cifar10"
    assert data.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-4)
    np.testing.assert_array_equal(data.x_test.permute(0, 2, 3, 1), arrays["x_test"])


def test_an_npz_in_the_root_is_found_by_its_name(tmp_path):
    image = np.zeros((1, 2, 2), np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=image, y_train=[0], x_test=image, y_test=[0])
    assert isda.lab.data.load("mine", tmp_path).source == str(tmp_path / "mine.npz")
    assert isda.lab.data.load("mine.npz", tmp_path).source == str(tmp_path / "mine.npz")


def test_a_path_that_exists_as_given_wins(tmp_path, monkeypatch, write_images):
    image = np.zeros((1, 2, 2), np.uint8)
    for folder in (tmp_path, tmp_path / "root"):
        for name in ("cats", "dogs"):
            write_images(folder / "photos" / name, 5)
        np.savez(folder / "photos.npz", x_train=image, y_train=[0], x_test=image, y_test=[0])
    monkeypatch.chdir(tmp_path)
    assert isda.lab.data.load("photos", "root").source == str(tmp_path / "photos")
    assert isda.lab.data.load("photos.npz", "root").source == str(tmp_path / "photos.npz")
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert isda.lab.data.load("photos", "root").source == str(tmp_path / "root" / "photos")
    (tmp_path / "root" / "photos").rename(tmp_path / "nowhere")
    assert isda.lab.data.load("photos", "root").source == str(tmp_path / "root" / "photos.npz")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("fashionmnist", "fashion-mnist"), ("shvn", "svhn")],
)
def test_a_misspelt_name_suggests_the_right_one(tmp_path, name, meant):
    with pytest.raises(ValueError, match=f"unknown data set '{name}'; did you mean '{meant}'\\?"):
        isda.lab.data.load(name, tmp_path)


@pytest.mark.parametrize("name", ["qwertz", ""])
def test_an_unknown_name_lists_the_known_ones(tmp_path, name):
    with pytest.raises(ValueError, match=rf"unknown data set '{name}'; expected one of digits, fashion-mnist, cifar10"):
        isda.lab.data.load(name, tmp_path)


def test_extra_is_for_svhn_only(tmp_path):
    with pytest.raises(ValueError, match="extra=True is for the data set svhn, got 'cifar10'"):
        isda.lab.data.load("cifar10", tmp_path, extra=True)
    with pytest.raises(FileNotFoundError, match=r"extra_32x32\.mat"):
        isda.lab.data.load("svhn", tmp_path, extra=True, download=False)


def test_checksums_and_addresses_are_the_ones_torchvision_uses():
    def files(name, layout=0):
        return [(file.url, file.md5) for file in CATALOGUE[name].layouts[layout].files]

    assert files("cifar10", 1) == [(datasets.CIFAR10.url, datasets.CIFAR10.tgz_md5)]
    assert files("cifar100", 1) == [(datasets.CIFAR100.url, datasets.CIFAR100.tgz_md5)]
    split = datasets.SVHN.split_list
    assert files("svhn-extra") == [(split[key][0], split[key][2]) for key in ("train", "test", "extra")]
    mirror = datasets.FashionMNIST.mirrors[0]
    assert files("fashion-mnist") == [(mirror + name, md5) for name, md5 in datasets.FashionMNIST.resources]
    archives = [imagenet.ARCHIVE_META[key] for key in ("devkit", "train", "val")]
    assert [(file.name, file.md5) for file in CATALOGUE["imagenet"].layouts[1].files] == archives
