"""Folders, .npz files and named sets: what is read, and one clear message for what cannot be."""

import hashlib
import io
import os
import pickle
import sys
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from isda.lab.data import CATALOGUE, DataSet, ImageFiles, channel_statistics, load
from isda.lab.data.catalogue import SKIP_VARIABLE, data_root
from isda.lab.data.image_files import read_image
from isda.lab.data.npz import npz_contents, read_npz

# -- class folders ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path, write_images):
    for seed, (part, count) in enumerate({"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 2}.items()):
        write_images(tmp_path / "pets" / part, count, seed=seed)
    return tmp_path / "pets"


@pytest.mark.parametrize("name", ["folder:{path}", "{path}", "pets", "pets/"])
def test_train_and_val_folders_are_found_by_path_and_by_name(pets, name):
    data = load(name.format(path=pets), root=pets.parent)
    assert (data.name, data.classes, data.image_size) == ("pets", ("cat", "dog"), (6, 5))
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 1])
    assert torch.equal(data.x_train[3], read_image(pets / "train" / "dog" / "000.png"))


def test_grey_images_have_one_channel_only_if_all_are_grey(tmp_path, write_images):
    for part in ("train", "test"):
        write_images(tmp_path / part / "a", 2, mode="L")
    assert load(tmp_path).x_train.shape == (2, 1, 6, 5)
    write_images(tmp_path / "test" / "a" / "below", 1, mode="RGB")
    assert load(tmp_path).x_test.shape == (3, 3, 6, 5)


def test_images_of_several_sizes_are_decoded_on_access(pets, write_images):
    write_images(pets / "train" / "owl", 2, size=(9, 4))
    data = load(pets)
    assert isinstance(data.x_train, ImageFiles)
    assert data.x_train[6].shape == (3, 9, 4)
    assert (data.image_size, data.channels, len(data.mean)) == (None, 3, 3)
    assert data.x_train[torch.tensor([2, 0])].paths == (data.x_train.paths[2], data.x_train.paths[0])
    assert data.x_train[1:3].paths == data.x_train.paths[1:3]
    assert channel_statistics(data.x_test) == channel_statistics(torch.stack([data.x_test[i] for i in range(3)]))


def test_without_train_and_test_a_fixed_fifth_of_each_class_is_for_testing(tmp_path, write_images):
    write_images(tmp_path / "a", 10, seed=1)
    write_images(tmp_path / "b", 5, seed=2)
    first, second = (load(f"folder:{tmp_path}") for _ in range(2))
    assert first.y_train.bincount().tolist() == [8, 4]
    assert torch.equal(first.x_test, second.x_test)
    assert len(torch.cat([first.x_train, first.x_test]).flatten(1).unique(dim=0)) == 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_says(tmp_path, orientation):
    """The upright image has one white corner, upper left; what is stored is turned back."""
    upright = Image.new("L", (48, 32))
    upright.paste(255, (0, 0, 8, 8))
    undo = [None, 0, 3, 1, 5, 2, 6, 4]  # PIL's numbers of the inverse transpositions
    stored = upright if undo[orientation - 1] is None else upright.transpose(Image.Transpose(undo[orientation - 1]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("train/a", "test/a"):
        (tmp_path / name).mkdir(parents=True)
        stored.save(tmp_path / name / "0.jpg", exif=exif, quality=95)
        upright.save(tmp_path / name / "1.jpg", quality=95)
    data = load(tmp_path)
    assert data.image_size == (32, 48)
    assert (data.x_train[0].int() - data.x_train[1].int()).abs().max() < 32


def broken(folder):
    """Two files of which only decoding, and only opening, shows that they cannot be read."""
    for path, kept in ((folder / "train" / "dog" / "001.png", -30), (folder / "val" / "cat" / "000.png", 20)):
        path.write_bytes(path.read_bytes()[:kept])


def test_unreadable_images_are_listed_all_at_once_and_can_be_left_out(pets, write_images, monkeypatch):
    write_images(pets / "val" / "cat", 3)
    broken(pets)
    (pets / "train" / "cat" / "000.png").write_text("words")
    with pytest.raises(ValueError, match="2 of 5 images cannot be used") as raised:
        load(pets)
    for name in ("train/cat/000.png", "train/dog/001.png", "--skip-unreadable"):
        assert name in str(raised.value)
    with pytest.warns(UserWarning, match=r"of \d images cannot be used") as warned:
        data = load(pets, skip_unreadable=True)
    assert "val/cat/000.png" in str(warned[1].message)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 1], [0, 0, 1, 1])
    # As --skip-unreadable of the command line does it, whose workers inherit the environment.
    monkeypatch.setenv(SKIP_VARIABLE, "1")
    with pytest.warns(UserWarning, match="they are left out"):
        assert torch.equal(load(pets).y_train, data.y_train)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are Unicode there")
@pytest.mark.parametrize("name", [b"caf\xe9/0.png", b"cat/\xff.png"])
def test_names_that_are_not_utf8_are_refused(pets, name):
    path = os.path.join(os.fsencode(pets), b"train", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        Image.new("RGB", (5, 6)).save(stream, "PNG")
    with pytest.raises(ValueError, match="names of files and folders must be UTF-8, rename these 1:"):
        load(pets)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda p, w: (p / "val/cat/000.png").unlink(), ValueError, "the class folder .*cat holds no image"),
        (lambda p, w: w(p / "val/owl", 1), ValueError, "owl is a class that the training images do not have"),
        (lambda p, w: (p / "val").rename(p / "other"), FileNotFoundError, "has train/ but neither test/ nor val/"),
        (lambda p, w: (p / "train").rename(p.parent / "gone"), ValueError, "the class folder .*val holds|cat|"),
    ],
)
def test_folders_that_cannot_be_read_say_why(pets, write_images, change, kind, message):
    change(pets, write_images)
    if message.endswith("|"):
        assert load(pets).classes == ("val",)
        return
    with pytest.raises(kind, match=message):
        load(pets)


def test_a_folder_without_class_folders_and_one_that_is_not_there_say_so(tmp_path):
    with pytest.raises(ValueError, match="must hold one folder of images per class, it has no folders"):
        load(f"folder:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load(f"folder:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("P", 3), ("RGBA", 3), ("L", 3)])
def test_other_modes_become_grey_or_rgb(tmp_path, mode, channels):
    Image.new("L", (5, 6), 255).convert(mode).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", channels)
    assert (image.shape, image.dtype, image.unique().tolist()) == ((channels, 6, 5), torch.uint8, [255])


def test_an_image_of_16_bits_is_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png has pixels of mode I.*8 bits per channel are expected"):
        read_image(tmp_path / "deep.png")


def test_imagenet_has_the_names_of_wordnet_and_ignores_its_unlabelled_test_images(tmp_path, write_images):
    for part in ("train", "val"):
        for name in ("n01440764", "n99999999"):
            write_images(tmp_path / "imagenet" / part / name, 1)
    write_images(tmp_path / "imagenet" / "test", 5)
    data = load("imagenet", tmp_path)
    assert data.classes == ("tench", "n99999999")
    assert data.mean == pytest.approx((0.485, 0.456, 0.406))


# -- .npz files ------------------------------------------------------------------------------------------------------


def write_npz(path, **changes):
    random = np.random.default_rng(0)
    arrays = {
        "x_train": random.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": random.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8),
        "y_test": np.array([2, 1, 0]),
        "classes": np.array(["cat", "dog", "owl"]),
    } | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_images_of_an_npz_become_channels_first(tmp_path):
    path = write_npz(tmp_path / "pets.npz")
    for name in ("pets", "pets.npz", path):
        data = load(name, tmp_path)
        with np.load(path) as stored:
            np.testing.assert_array_equal(data.x_train.permute(0, 2, 3, 1), stored["x_train"])
        assert (data.name, data.classes, data.y_test.tolist()) == ("pets", ("cat", "dog", "owl"), [2, 1, 0])
    grey = {"x_train": np.zeros((6, 4, 5), np.uint8), "x_test": np.ones((3, 4, 5), np.uint8), "classes": None}
    read = read_npz(write_npz(tmp_path / "a.npz", **grey, y_train=np.array([0, 1, 2, 0, 1, 2], np.uint8)))
    assert (read.x_test.shape, read.classes, read.y_train.dtype) == ((3, 1, 4, 5), ("0", "1", "2"), torch.int64)
    contents = npz_contents(path)
    assert contents == {"train": 6, "test": 3, "classes": 3, "channels": 3, "image_size": (4, 5)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "must hold x_train, y_train, x_test, y_test; y_test is missing"),
        ({"x_train": np.zeros((6, 3, 32, 32), np.uint8)}, r"x_train of .* C in 1\.\.4, got uint8 .* \(6, 3, 32, 32\)"),
        ({"x_test": np.zeros((3, 4, 5, 3))}, r"x_test of .* must be uint8 .* got float64"),
        ({"x_test": np.zeros((3, 8, 8, 3), np.uint8)}, r"must have one shape .*, got \(3, 4, 5\) and \(3, 8, 8\)"),
        ({"y_train": np.zeros(5, int)}, r"y_train of .* shape \(6,\), one label per image, got .* \(5,\)"),
        ({"y_train": np.zeros(6)}, r"y_train of .* must be integers of shape \(N,\), got float64"),
        ({"y_train": np.array([0, 1, 2, 0, 7, 2])}, r"y_train of .* holds the label 7 at position 4; .* in 0\.\.2"),
        ({"y_test": np.array([2, -1, 0])}, r"y_test of .* holds the label -1 at position 1; .* in 0\.\.2"),
        ({"y_train": np.array([0, 1, 2, 0, 2**32, 2]), "classes": None}, "must have labels below 6"),
        ({"classes": np.array([1.0, 2.0, 3.0])}, r"classes of .* must be names of shape \(C,\), got float64"),
        ({"classes": np.array(["a", None, "c"])}, r"no \.npz archive of plain arrays"),
    ],
)
def test_a_file_that_is_no_data_set_says_why(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        load(write_npz(tmp_path / "broken.npz", **changes))
    assert "broken" in str(raised.value)


@pytest.mark.parametrize("kept", [-200, 1000, 0])
def test_a_truncated_npz_is_one_sentence(tmp_path, kept):
    path = write_npz(tmp_path / "cut.npz")
    path.write_bytes(path.read_bytes()[:kept])
    for read in (read_npz, npz_contents):
        with pytest.raises(ValueError, match=r"cut\.npz is damaged, incomplete or no \.npz archive"):
            read(path)


# -- named sets ------------------------------------------------------------------------------------------------------


def test_digits_need_no_files_and_never_change():
    data, again = load(), load("digits")
    assert (data.x_train.shape, data.y_test.bincount().unique().tolist()) == ((1297, 1, 8, 8), [50])
    assert torch.equal(data.x_test, again.x_test)
    assert hashlib.sha256(data.x_test.numpy().tobytes()).hexdigest()[:8] == "4908606c"


def cifar_archive(path, kind, members):
    """A small archive of pickles in the official format, whose md5s torchvision is made to expect."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


@pytest.fixture
def cifar100(tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8), [3, 1, 4, 1, 5]
    members = {
        "train": pickle.dumps({"data": images[:3].reshape(3, -1), "fine_labels": labels[:3]}),
        "test": pickle.dumps({"data": images[3:].reshape(2, -1), "fine_labels": labels[3:]}),
        "meta": pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]}),
    }
    kind, archive = datasets.CIFAR100, tmp_path / "cifar-100-python.tar.gz"
    cifar_archive(archive, kind, members)
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in members.items()}
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(kind, "train_list", [["train", md5["train"]]])
    monkeypatch.setattr(kind, "test_list", [["test", md5["test"]]])
    monkeypatch.setattr(kind, "meta", {"filename": "meta", "key": "fine_label_names", "md5": md5["meta"]})
    monkeypatch.setattr(kind, "url", "http://127.0.0.1:9/cifar-100-python.tar.gz")
    return tmp_path, images, labels


def test_an_archive_in_the_root_or_in_a_folder_of_its_name_is_unpacked_and_read(cifar100):
    root, images, labels = cifar100
    data = load("cifar100", root, download=False)
    np.testing.assert_array_equal(torch.cat([data.x_train, data.x_test]), images)
    assert [*data.y_train.tolist(), *data.y_test.tolist()] == labels
    assert (len(data.classes), data.source) == (100, str(root))
    assert data.mean == pytest.approx((129.3 / 255, 124.1 / 255, 112.4 / 255))


def test_a_damaged_archive_is_one_sentence(cifar100):
    root, _, _ = cifar100
    archive = root / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"cifar-100-python.tar.gz in .* are damaged or incomplete"):
        load("cifar100", root)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "digits"])
def test_a_missing_set_says_which_files_to_put_where(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"the data set {name} is not under .*: put ") as raised:
        load(name, tmp_path, download=False)
    for file in CATALOGUE[name].files:
        assert file in str(raised.value)


def test_a_failed_download_gives_its_reason_and_the_same_advice(cifar100, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not under .* fetching it failed .*; put cifar-100-python"):
        load("cifar100", tmp_path / "elsewhere")


def test_files_are_named_as_torchvision_names_them():
    assert CATALOGUE["cifar10"].files == (datasets.CIFAR10.filename,)
    assert CATALOGUE["svhn-extra"].files == tuple(
        datasets.SVHN.split_list[part][1] for part in ("train", "test", "extra")
    )
    resources = {f"FashionMNIST/raw/{name}" for name, _ in datasets.FashionMNIST.resources}
    assert set(CATALOGUE["fashion-mnist"].files) == resources


def test_an_npz_with_a_known_name_is_used_with_the_published_statistics(tmp_path):
    image = np.zeros((10, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", y_train=np.arange(10), y_test=np.arange(10), x_train=image, x_test=image)
    data = load("cifar10", tmp_path)
    assert (data.name, data.mean) == ("cifar10", pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-4))


def test_a_path_that_exists_as_given_wins(tmp_path, monkeypatch, write_images):
    for folder in (tmp_path, tmp_path / "root"):
        write_images(folder / "photos" / "cats", 5)
        write_npz(folder / "photos.npz")
    monkeypatch.chdir(tmp_path)
    assert load("photos", "root").source == str(tmp_path / "photos")
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert load("photos", "root").source == str(tmp_path / "root" / "photos")
    assert load("photos.npz", "root").source == str(tmp_path / "photos.npz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-10", "unknown data set 'cifar-10'; did you mean 'cifar10'"),
        ("qwertz", "unknown data set 'qwertz'; expected one of digits, fashion-mnist, cifar10"),
        ("", "unknown data set ''; expected one of digits"),
    ],
)
def test_an_unknown_name_says_what_is_known(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path)


def test_root_is_the_argument_then_the_environment_then_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ISDA_DATA", raising=False)
    assert data_root() == tmp_path / "data"
    monkeypatch.setenv("ISDA_DATA", str(tmp_path / "environment"))
    assert (data_root(), data_root(tmp_path / "argument")) == (tmp_path / "environment", tmp_path / "argument")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": torch.full((8,), 2)}, r"y_train of tiny holds the label 2 at position 0; .* must be in 0\.\.1"),
        ({"y_train": torch.zeros(8)}, r"y_train of tiny must be int64 of shape \(8,\).* got torch.float32"),
        ({"x_train": torch.zeros(8, 3, 4, 4)}, r"x_train of tiny must be uint8 of shape \(N, C, H, W\), got .*float32"),
        ({"x_test": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}, r"one shape .*, got \(3, 4, 4\) and \(1, 4, 4\)"),
    ],
)
def test_wrong_arrays_are_refused_with_their_name(changes, message):
    fields = {
        "x_train": torch.zeros(8, 3, 4, 4, dtype=torch.uint8),
        "y_train": torch.arange(8) % 2,
        "x_test": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "y_test": torch.tensor([1, 0]),
    }
    with pytest.raises(ValueError, match=message):
        DataSet("tiny", **(fields | changes), classes=("cat", "dog"))
