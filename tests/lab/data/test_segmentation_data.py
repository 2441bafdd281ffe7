"""Images with labelled pixels: every layout, what classes and ids mean, and files that are wrong."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.data.segmentation import CITYSCAPES_CLASSES as CITYSCAPES
from isda.lab.data.segmentation import CITYSCAPES_LABEL_IDS, IGNORED, load
from segmentation_runs import CLASSES, draw, scene

PARTS = {"train": 3, "val": 2, "test": 1}


def counts(data):
    return len(data.train), len(data.validation), len(data.test)


@pytest.mark.parametrize(
    ("images", "labels"), [("images/{}", "labels/{}"), ("{}/images", "{}/labels"), ("{}", "{}annot")]
)
def test_layouts_divided_by_part_are_read_alike(tmp_path, images, labels):
    data = load(draw(tmp_path / "scenes", PARTS, images, labels))
    assert counts(data) == (3, 2, 1)
    assert (data.name, data.classes, data.ignore_index) == ("scenes", CLASSES, 255)
    for number, (part, index) in enumerate([("train", 0), ("train", 1), ("train", 2), ("validation", 0)]):
        image, ids = data.part(part)[index]
        pixels, expected = scene(number)
        assert torch.equal(image, torch.from_numpy(pixels).permute(2, 0, 1))
        assert torch.equal(ids, torch.from_numpy(expected))


def test_a_folder_that_is_not_divided_holds_the_same_fifth_out_every_time(tmp_path):
    folder = draw(tmp_path, {"": 10}, "images", "labels")
    data, again = load(folder), load(folder)
    assert counts(data) == (8, 2, 0)
    assert data.validation.pairs == again.validation.pairs
    assert len({*data.train.pairs, *data.validation.pairs}) == 10


def test_names_are_found_under_the_root_and_paths_anywhere(tmp_path, monkeypatch):
    draw(tmp_path / "data" / "mine", PARTS)
    assert counts(load("mine", tmp_path / "data")) == (3, 2, 1)
    monkeypatch.chdir(tmp_path)
    assert counts(load("data/mine")) == (3, 2, 1)
    with pytest.raises(ValueError, match="unknown data set 'nowhere'; expected a folder"):
        load("nowhere", tmp_path)
    with pytest.raises(ValueError, match="did you mean 'cityscapes'"):
        load("cityscape", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"cityscapes is not under .*: put leftImg8bit/ and gtFine/"):
        load("cityscapes", tmp_path)
    with pytest.raises(ValueError, match="must hold leftImg8bit/ and gtFine/, train/ and trainannot/, or images/"):
        load(tmp_path)


# -- classes ---------------------------------------------------------------------------------------------------------


def test_classes_of_a_description_leave_out_the_id_that_does_not_count(tmp_path):
    folder = draw(tmp_path, PARTS)
    described = {"classes": ["ground", "wall", "void"], "ignore_index": 2, "colours": ["#00ff00", "#0000ff", "#000000"]}
    (folder / "classes.json").write_text(json.dumps(described))
    data = load(folder)
    assert (data.classes, data.colours) == (("ground", "wall"), ("#00ff00", "#0000ff"))
    _, expected = scene(0)
    assert torch.equal(data.train[0][1], torch.from_numpy(np.where(expected == 2, IGNORED, expected)))


def test_ids_behind_the_one_that_does_not_count_move_up(tmp_path):
    folder = draw(tmp_path, PARTS)
    (folder / "meta.json").write_text(json.dumps({"classes": ["void", "wall", "ball"], "ignore_index": 0}))
    data = load(folder)
    assert data.classes == ("wall", "ball")
    _, expected = scene(0)
    assert torch.equal(data.train[0][1].unique(), torch.tensor([0, 1, 255], dtype=torch.uint8))
    assert int((data.train[0][1] == 1).sum()) == int((expected == 2).sum())


def test_without_a_description_there_are_as_many_classes_as_ids_or_those_of_camvid(tmp_path):
    draw(tmp_path / "plain", PARTS)
    draw(tmp_path / "camvid", PARTS, "{}", "{}annot")
    for name in ("plain", "camvid"):
        (tmp_path / name / "classes.txt").unlink()
    assert load(tmp_path / "plain").classes == ("class 0", "class 1", "class 2")
    camvid = load(tmp_path / "camvid")
    assert camvid.classes[:4] == ("Sky", "Building", "Pole", "Road")
    assert len(camvid.classes) == 11
    assert int(camvid.train.table[11]) == IGNORED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "classes.json is not JSON"),
        ('{"names": []}', "must hold the names of the classes"),
        ("[1, 2, 3]", "must hold the names of the classes"),
        ('["a", "a", "b"]', "must name from 1 to 255 classes, each once, got 3 names"),
        ('{"classes": ["a"], "ignore_index": 300}', "must have an id from 0 to 255 as ignore_index, got 300"),
        ('{"classes": ["a"], "colours": ["red"]}', r'must have a colour written "#rrggbb" for each of its 1 classes'),
        ('{"classes": ["a", "b"], "colours": ["#ff0000"]}', "for each of its 2 classes"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(tmp_path, content, message):
    (draw(tmp_path, PARTS) / "classes.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


# -- Cityscapes ------------------------------------------------------------------------------------------------------


def cityscapes(folder, end):
    """Two images per part; the labels hold all ids that may occur."""
    allowed = list(range(34)) if end == "labelIds" else [*range(19), 255]
    ids = np.resize(np.array(allowed, np.uint8), (6, 10))
    for part in ("train", "val", "test"):
        for number in range(2):
            stem = f"town_{number:06d}_000019"
            for place in ("leftImg8bit", "gtFine"):
                (folder / place / part / "town").mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (10, 6)).save(folder / "leftImg8bit" / part / "town" / f"{stem}_leftImg8bit.png")
            Image.fromarray(ids).save(folder / "gtFine" / part / "town" / f"{stem}_gtFine_{end}.png")
            Image.fromarray(ids).save(folder / "gtFine" / part / "town" / f"{stem}_gtFine_instanceIds.png")
    return ids


@pytest.mark.parametrize("end", ["labelIds", "labelTrainIds"])
def test_cityscapes_has_nineteen_classes_and_no_labels_for_its_test_images(tmp_path, end):
    ids = cityscapes(tmp_path, end)
    data = load(tmp_path)
    assert (data.name, data.classes, counts(data)) == ("cityscapes", CITYSCAPES, (2, 2, 2))
    assert (len(CITYSCAPES), CITYSCAPES[0], CITYSCAPES[-1]) == (19, "road", "bicycle")
    assert data.validation.labelled
    assert not data.test.labelled
    expected = [
        CITYSCAPES_LABEL_IDS.index(i)
        if end == "labelIds" and i in CITYSCAPES_LABEL_IDS
        else i
        if end == "labelTrainIds"
        else IGNORED
        for i in ids.flatten().tolist()
    ]
    assert data.train[0][1].flatten().tolist() == expected
    assert data.test[0][1].unique().tolist() == [IGNORED]


def test_a_cityscapes_image_without_its_labels_is_named(tmp_path):
    cityscapes(tmp_path, "labelIds")
    (tmp_path / "gtFine/val/town/town_000001_000019_gtFine_labelIds.png").unlink()
    with pytest.raises(ValueError, match=r"town_000001_000019_leftImg8bit.png has no labels: .*labelIds.png is not"):
        load(tmp_path)


# -- files that are wrong --------------------------------------------------------------------------------------------


def without_labels(folder):
    (folder / "labels/val/scene-004.png").unlink()


def without_image(folder):
    (folder / "images/val/scene-004.png").unlink()


def of_another_size(folder):
    Image.new("L", (10, 10)).save(folder / "labels/train/scene-001.png")


def of_colours(folder):
    Image.new("RGB", (34, 26)).save(folder / "labels/train/scene-000.png")


def with_a_strange_id(folder):
    labels = scene(2)[1]
    labels[5, 7] = 3
    Image.fromarray(labels).save(folder / "labels/train/scene-002.png")


def no_image(folder):
    (folder / "images/train/scene-001.png").write_text("words")


def two_of_a_name(folder):
    shutil.copy(folder / "images/train/scene-001.png", folder / "images/train/scene-001.bmp")


def empty(folder):
    for path in (folder / "images/train").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (without_labels, r"images/val/scene-004.png has no labels: .*labels/val/scene-004.png is not there"),
        (without_image, r"labels/val/scene-004.png has no image: there is none of that name in .*images/val"),
        (of_another_size, r"scene-001.png must have the size of its image scene-001.png, 34x26 pixels, got 10x10"),
        (of_colours, r"labels/train/scene-000.png must hold class ids, .* got pixels of mode RGB"),
        (
            with_a_strange_id,
            r"scene-002.png holds the label id 3 at row 5, column 7; ids must be among .0, 1, 2., or 255 for",
        ),
        (no_image, r"images/train/scene-001.png cannot be read as an image"),
        (two_of_a_name, r"scene-001.png must be the only image of its name, got scene-001.bmp beside it"),
        (empty, r"images/train holds no image"),
    ],
)
def test_a_file_that_is_wrong_is_named_in_one_sentence(tmp_path, harm, message):
    harm(draw(tmp_path, PARTS))
    with pytest.raises(ValueError, match=message):
        load(tmp_path).check(("train", "validation"))


def test_files_that_are_decoded_later_are_checked_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("isda.lab.data.segmentation.IN_MEMORY_BYTES", 0)
    with_a_strange_id(draw(tmp_path, PARTS))
    data = load(tmp_path)
    data.check(("train",))
    with pytest.raises(ValueError, match=r"scene-002.png holds the label id 3"):
        data.train[2]


def test_the_digest_tells_changes_apart(tmp_path):
    folder = draw(tmp_path, PARTS)
    before = load(folder).digest
    assert load(folder).digest == before
    (folder / "classes.txt").write_text("a\nb\nc\n")
    renamed = load(folder).digest
    assert renamed != before
    for place in ("images", "labels"):
        (folder / place / "train/scene-000.png").rename(folder / place / "train/other.png")
    assert load(folder).digest != renamed
