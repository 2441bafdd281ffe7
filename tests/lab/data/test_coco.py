"""Sets in COCO's format: layouts, masks, crowds and empty boxes, and one sentence for whatever cannot be used."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.data.coco import decode_mask, encode_mask, load
from shapes import CATEGORY_IDS, KINDS, draw_set


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_set(tmp_path_factory.mktemp("shapes") / "drawn", train=4, validation=2, size=64, largest=40)


@pytest.fixture
def folder(drawn, tmp_path):
    return shutil.copytree(drawn, tmp_path / "set")


def changed(folder, change, part="train"):
    """The set after a change to one of its files."""
    file = folder / f"{part}.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return folder


def test_reads_boxes_labels_and_masks(drawn):
    data = load(drawn)
    assert (len(data.train), len(data.validation), data.classes) == (4, 2, KINDS)
    content = json.loads((drawn / "train.json").read_text())
    for index, entry in enumerate(data.train.images):
        theirs = [one for one in content["annotations"] if one["image_id"] == entry.id]
        target = data.train.target(index, masks=True)
        corners = [[x, y, x + w, y + h] for x, y, w, h in (one["bbox"] for one in theirs)]
        torch.testing.assert_close(target["boxes"], torch.tensor(corners).clamp(0, 64))
        assert [CATEGORY_IDS[label - 1] for label in target["labels"].tolist()] == [
            one["category_id"] for one in theirs
        ]
        assert target["masks"].shape == (len(theirs), 64, 64)
        areas = torch.tensor([one["area"] for one in theirs])
        torch.testing.assert_close(target["masks"].sum((1, 2)).float(), areas, rtol=0.12, atol=12.0)
    assert data.train.image(0).shape == (3, 64, 64)


LAYOUTS = {
    "official": {"train.json": "annotations/instances_train2017.json", "val.json": "annotations/instances_val2017.json",
                 "train": "train2017", "val": "val2017"},
    "annotations": {"train.json": "annotations/train.json", "val.json": "annotations/val.json",
                    "train": "images/train", "val": "images/val"},
    "beside": {"train.json": "train/_annotations.coco.json", "val.json": "valid/_annotations.coco.json",
               "train": "train", "val": "valid"},
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_knows_layouts(layout, drawn, tmp_path):
    for old, new in sorted(LAYOUTS[layout].items(), reverse=True):
        (tmp_path / new).parent.mkdir(parents=True, exist_ok=True)
        if (drawn / old).is_dir():
            shutil.copytree(drawn / old, tmp_path / new, dirs_exist_ok=True)
        else:
            shutil.copy(drawn / old, tmp_path / new)
    data = load(tmp_path)
    assert data.digest == load(drawn).digest
    assert data.train.image(3).shape == (3, 64, 64)


def test_a_set_is_found_by_its_name_under_the_root(drawn):
    assert load("drawn", drawn.parent).source == str(drawn)


def test_run_lengths_compressed_or_not_and_polygons_are_one_mask():
    mask = torch.zeros(6, 5, dtype=torch.uint8)
    mask[1:4, 2:5] = 1
    columns = mask.T.flatten().tolist()
    counts, value = [], 0
    while columns:
        length = next((i for i, pixel in enumerate(columns) if pixel != value), len(columns))
        counts.append(length)
        columns, value = columns[length:], 1 - value
    for segmentation in (encode_mask(mask), {"size": [6, 5], "counts": counts}, [[2, 1, 5, 1, 5, 4, 2, 4]]):
        assert torch.equal(decode_mask(segmentation, 6, 5), mask)


def test_crowds_are_not_learnt_and_stay_in_the_ground_truth(folder):
    before = load(folder).train

    def crowd(content):
        content["annotations"][0] |= {
            "iscrowd": 1,
            "segmentation": {"size": [64, 64], "counts": [0, 64 * 32, 64 * 32]},
        }

    after = load(changed(folder, crowd)).train
    assert sum(map(len, after.objects)) == sum(map(len, before.objects)) - 1
    assert len(after.content["annotations"]) == len(before.content["annotations"])


@pytest.mark.parametrize("box", [[5, 5, 0, 10], [5, 5, 10, -3], [80, 80, 10, 10], [-20, 4, 20.5, 9]])
def test_empty_boxes_are_left_out_with_a_warning(folder, box):
    def empty(content):
        content["annotations"][0]["bbox"] = box

    with pytest.warns(UserWarning, match=r"train.json: 1 of \d+ annotations have empty boxes .* the first of them 1$"):
        data = load(changed(folder, empty))
    assert all(one.id != 1 for objects in data.train.objects for one in objects)


def test_boxes_are_cut_at_the_border(folder):
    def wide(content):
        content["annotations"][0]["bbox"] = [-5, 50, 30, 30]

    assert load(changed(folder, wide)).train.objects[0][0].box == (0.0, 50.0, 25.0, 64.0)


def first(name, **changes):
    return lambda content: content[name][0].update(changes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (first("annotations", image_id=99), "annotation 1 is of image 99, which the file lacks"),
        (first("annotations", category_id=5), "annotation 1 has the category 5, which the file lacks"),
        (first("annotations", bbox=[1, 2, 3]), "must have four numbers as bbox"),
        (first("annotations", bbox=[1, 2, float("nan"), 4]), "must have four numbers as bbox"),
        (first("annotations", bbox=None), r"annotations\[0\] must have list as bbox, got None"),
        (first("annotations", segmentation=[[70, 70, 80, 70, 80, 80]]), "annotation 1: .* lies outside the image"),
        (first("annotations", segmentation=[[1, 2]]), "polygons of at least three points"),
        (first("annotations", segmentation=[["a"] * 6]), "its segmentation must have polygons of finite numbers"),
        (first("annotations", segmentation=[[1, 2, 3, float("inf"), 5, 6]]), "polygons of finite numbers"),
        (first("annotations", segmentation={"size": [9, 9], "counts": [81]}), r"of the size \[64, 64\] of its image"),
        (first("annotations", segmentation={"size": [64, 64], "counts": [7]}), "add up to the 4096 pixels"),
        (first("annotations", segmentation={"size": [64, 64], "counts": "é"}), "cannot be read"),
        (first("annotations", id=2), "must give each of its annotations an id of its own"),
        (first("images", file_name="gone.png"), r"the file 'gone.png' of image 1 is in none of"),
        (lambda content: content["images"][2].update(file_name="gone.png"), "'gone.png' of image 3 is not in .*train$"),
        (first("images", file_name="../val/0001.png"), r"file_name of image 1 must be .* got '\.\./val/0001\.png'$"),
        (first("images", file_name="/etc/hostname"), "file_name of image 1 must be a path below the folder of images"),
        (first("images", height="64"), "must have int as height"),
        (lambda content: content.update(images=[]), "must have a list of images"),
        (lambda content: content.update(annotations=None), "must have a list of annotations"),
        (lambda content: content["categories"].pop(), "has the category 20|must have the categories of"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_one_sentence(folder, change, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        load(changed(folder, change))
    assert "train.json" in str(raised.value)


def test_a_file_that_is_no_json(folder):
    (folder / "val.json").write_text("{")
    with pytest.raises(ValueError, match=r"val.json is not JSON"):
        load(folder)


def test_no_folder_and_no_annotations(tmp_path):
    with pytest.raises(FileNotFoundError, match="'nowhere' is not there"):
        load("nowhere", tmp_path)
    with pytest.raises(FileNotFoundError, match="has no train annotations"):
        load(tmp_path)


def test_an_image_of_another_size_than_annotated(folder):
    Image.fromarray(np.zeros((10, 12, 3), np.uint8)).save(folder / "train" / "0001.png")
    with pytest.raises(ValueError, match=r"0001.png has 12x10 pixels, but .*train.json says that image 1 has 64x64"):
        load(folder).train.image(0)


def test_the_digest_tells_of_changes(folder):
    before = load(folder).digest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = load(changed(folder, first("annotations", bbox=[1, 1, 20, 20]))).digest
    assert before != after
