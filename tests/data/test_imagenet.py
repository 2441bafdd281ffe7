"""ImageNet: folders of WordNet ids, and unpacking archives like the official ones."""

import hashlib
import io
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import imagenet as official

import isda.lab.data

IDS = ("n01440764", "n02123045")


def tar_bytes(members, mode="w"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def jpeg(width, height):
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (width, height, 0)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """The three archives with two classes, and torchvision's md5 table changed to theirs."""
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "O")]
    rows = [(i + 1, wordnet_id, "words, more", "gloss", 0) for i, wordnet_id in enumerate(IDS)]
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array([*rows, (3, "n00000000", "parent", "gloss", 2)], dtype=fields)})
    truth = "ILSVRC2012_validation_ground_truth.txt"
    kit = {"data/meta.mat": meta.getvalue(), f"data/{truth}": b"2\n1\n2\n"}
    kit = {f"ILSVRC2012_devkit_t12/{name}": data for name, data in kit.items()}
    train = {
        f"{wordnet_id}.tar": tar_bytes({f"{wordnet_id}_{i}.JPEG": jpeg(20 + i, 10) for i in range(2 + number)})
        for number, wordnet_id in enumerate(IDS)
    }
    val = {f"ILSVRC2012_val_0000000{i}.JPEG": jpeg(30 + i, 10) for i in (1, 2, 3)}
    folder = tmp_path / "imagenet"
    folder.mkdir()
    contents = {"devkit": tar_bytes(kit, "w:gz"), "train": tar_bytes(train), "val": tar_bytes(val)}
    table = {}
    for key, data in contents.items():
        name = official.ARCHIVE_META[key][0]
        (folder / name).write_bytes(data)
        table[key] = (name, hashlib.md5(data).hexdigest())
    monkeypatch.setattr(official, "ARCHIVE_META", table)
    return folder


def test_archives_are_unpacked_once_then_read_from_the_folders(archives):
    data = isda.lab.data.load("imagenet", archives.parent)
    assert data.classes == ("tench", "tabby")
    assert data.y_train.tolist() == [0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 1, 1]
    # The second validation image, 32 pixels wide, is of the first class.
    assert data.x_test[0].shape == (3, 10, 32)
    assert data.mean == (0.485, 0.456, 0.406)
    for archive in archives.glob("*.tar*"):
        archive.unlink()
    assert len(isda.lab.data.load("imagenet", archives.parent).x_train) == 5
    assert sorted(path.name for path in archives.iterdir()) == ["train", "val"]


def test_a_truncated_archive_is_named_and_leaves_nothing_behind(archives):
    path = archives / "ILSVRC2012_img_val.tar"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=r"ILSVRC2012_img_val\.tar is damaged or incomplete"):
        isda.lab.data.load("imagenet", archives.parent)
    assert sorted(path.suffix for path in archives.iterdir()) == [".gz", ".tar", ".tar"]


def test_missing_imagenet_says_which_files_to_put_where(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        isda.lab.data.load("imagenet", tmp_path)
    message = str(caught.value)
    assert f"into {tmp_path / 'imagenet'}" in message
    for name, md5 in official.ARCHIVE_META.values():
        assert f"{name} (md5 {md5})" in message


def test_the_official_test_images_without_labels_do_not_disturb(tmp_path, write_images):
    for split, count in (("train", 2), ("val", 1)):
        write_images(tmp_path / "imagenet" / split / "n01440764", count)
    write_images(tmp_path / "imagenet" / "test", 5)
    assert len(isda.lab.data.load("imagenet", tmp_path).x_test) == 1


def test_an_id_that_imagenet_does_not_have_keeps_its_name(tmp_path, write_images):
    for split in ("train", "val"):
        for name in ("n01440764", "n99999999"):
            write_images(tmp_path / "imagenet" / split / name, 1)
    assert isda.lab.data.load("imagenet", tmp_path).classes == ("tench", "n99999999")
