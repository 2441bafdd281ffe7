"""Folders of class folders."""

import pytest
import torch
from PIL import Image

import isda.lab.data
from isda.lab.data import ImageFiles
from isda.lab.data.image_files import read_image
from isda.lab.data.readers import folder


@pytest.fixture
def pets(tmp_path, write_images):
    for seed, (split, name, count) in enumerate(
        [("train", "cat", 3), ("train", "dog", 2), ("val", "cat", 1), ("val", "dog", 2)]
    ):
        write_images(tmp_path / "pets" / split / name, count, seed=seed)
    return tmp_path / "pets"


@pytest.mark.parametrize("name", ["folder:{path}", "{path}", "pets", "pets/"])
def test_train_and_val_folders_are_found_by_path_and_by_name(pets, name):
    data = isda.lab.data.load(name.format(path=pets), root=pets.parent)
    assert data.classes == ("cat", "dog")
    assert data.name == "pets"
    assert data.y_train.tolist() == [0, 0, 0, 1, 1]
    assert data.y_test.tolist() == [0, 1, 1]
    assert torch.equal(data.x_train[3], read_image(pets / "train" / "dog" / "000.png"))
    assert data.image_size == (6, 5)


def test_test_is_preferred_to_val(pets, write_images):
    write_images(pets / "test" / "dog", 7)
    assert isda.lab.data.load(pets).y_test.tolist() == [1] * 7


def test_grey_images_have_one_channel_only_if_all_are_grey(tmp_path, write_images):
    for split in ("train", "test"):
        write_images(tmp_path / "letters" / split / "a", 2, mode="L")
    assert isda.lab.data.load(tmp_path / "letters").x_train.shape == (2, 1, 6, 5)
    write_images(tmp_path / "letters" / "test" / "a", 1, mode="RGB")
    assert isda.lab.data.load(tmp_path / "letters").x_train.shape == (2, 3, 6, 5)


def test_images_of_several_sizes_are_decoded_on_access(pets, write_images):
    write_images(pets / "train" / "owl", 2, size=(9, 4))
    data = isda.lab.data.load(pets)
    assert isinstance(data.x_train, ImageFiles)
    assert isinstance(data.x_test, ImageFiles)
    assert data.x_train[6].shape == (3, 9, 4)
    assert data.image_size is None
    assert data.channels == 3
    assert len(data.mean) == 3


def test_images_too_large_for_memory_are_decoded_on_access(pets, monkeypatch):
    monkeypatch.setattr(folder, "IN_MEMORY_BYTES", 8 * 6 * 5 * 3 - 1)
    assert isinstance(isda.lab.data.load(pets).x_train, ImageFiles)
    monkeypatch.setattr(folder, "IN_MEMORY_BYTES", 8 * 6 * 5 * 3)
    assert isinstance(isda.lab.data.load(pets).x_train, torch.Tensor)


def test_images_in_folders_below_the_class_folder_count(pets, write_images):
    write_images(pets / "train" / "cat" / "images", 4)
    assert isda.lab.data.load(pets).y_train.bincount().tolist() == [7, 2]


def test_without_train_and_test_a_fixed_fifth_of_each_class_is_for_testing(tmp_path, write_images):
    write_images(tmp_path / "flat" / "a", 10, seed=1)
    write_images(tmp_path / "flat" / "b", 5, seed=2)
    first, second = (isda.lab.data.load(f"folder:{tmp_path / 'flat'}") for _ in range(2))
    assert first.y_train.bincount().tolist() == [8, 4]
    assert first.y_test.bincount().tolist() == [2, 1]
    assert torch.equal(first.x_test, second.x_test)
    together = torch.cat([first.x_train, first.x_test]).flatten(1).unique(dim=0)
    assert len(together) == 15


def test_an_unreadable_image_is_named(pets):
    (pets / "train" / "dog" / "001.png").write_bytes(b"\x89PNG but then nothing")
    with pytest.raises(ValueError, match=r"train/dog/001\.png cannot be read as an image"):
        isda.lab.data.load(pets)


def test_an_empty_class_folder_is_named(pets):
    (pets / "val" / "cat" / "000.png").rename(pets / "val" / "cat" / "000.txt")
    with pytest.raises(ValueError, match=r"the class folder .*val/cat holds no image"):
        isda.lab.data.load(pets)


def test_a_test_class_without_training_images_is_named(pets, write_images):
    write_images(pets / "val" / "owl", 1)
    with pytest.raises(ValueError, match=r"val/owl is a class that the training images do not have"):
        isda.lab.data.load(pets)


def test_train_without_test_says_what_is_missing(tmp_path, write_images):
    write_images(tmp_path / "half" / "train" / "a", 1)
    with pytest.raises(FileNotFoundError, match=r"half has train/ but neither test/ nor val/"):
        isda.lab.data.load(tmp_path / "half")


def test_a_folder_without_class_folders_says_so(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="must hold one folder of images per class, it has no folders"):
        isda.lab.data.load(f"folder:{tmp_path}")


def test_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        isda.lab.data.load(f"folder:{tmp_path / 'nowhere'}")
