"""COCO's figures: those of pycocotools on files as its users write them, and of faster-coco-eval."""

from __future__ import annotations

import json
import random

import pytest
import torch
from faster_coco_eval import COCO as FasterCOCO
from faster_coco_eval import COCOeval_faster
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from isda.lab.data.coco import encode_mask, load
from isda.lab.tasks.detection.evaluation import coco_scores, records_of
from shapes import CATEGORY_IDS, draw_set

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw_set(tmp_path_factory.mktemp("evaluated") / "shapes", train=1, validation=12, size=128)


def guesses(part, seed=0):
    """Detections that are mostly right: shifted, some of another class, some missing, some of nothing."""
    draw, records = random.Random(seed), []
    for index, entry in enumerate(part.images):
        target = part.target(index, masks=True)
        for box, label, mask in zip(target["boxes"].tolist(), target["labels"].tolist(), target["masks"], strict=True):
            for _ in range(draw.choice([0, 1, 1, 2])):
                across, down = draw.randint(-6, 6), draw.randint(-6, 6)
                label = label if draw.random() < 0.85 else draw.randint(1, 4)
                moved = torch.tensor([[box[0] + across, box[1] + down, box[2] + across, box[3] + down]])
                found = {
                    "boxes": moved.clamp(0, 128),
                    "labels": torch.tensor([label]),
                    "scores": torch.tensor([draw.random()]),
                    "masks": mask.roll((down, across), (0, 1))[None, None].float(),
                }
                records += records_of(found, entry.id, tuple(part.categories))
    return records


@pytest.mark.parametrize(("prefix", "kind"), [("", "bbox"), ("mask_", "segm")])
def test_figures_are_those_of_pycocotools_and_faster_coco_eval(folder, tmp_path, prefix, kind):
    part = load(folder).validation
    records = guesses(part)
    left_out = "segmentation" if kind == "bbox" else "bbox"
    file = tmp_path / "found.json"
    file.write_text(json.dumps([{k: v for k, v in one.items() if k != left_out} for one in records]))
    mine = coco_scores(part, records, masks=True)
    truth = COCO(str(folder / "val.json"))
    theirs = COCOeval(truth, truth.loadRes(str(file)), kind)
    faster_truth = FasterCOCO(str(folder / "val.json"))
    faster = COCOeval_faster(faster_truth, faster_truth.loadRes(str(file)), kind)
    for other in (theirs, faster):
        other.evaluate()
        other.accumulate()
        other.summarize()
        for name, value in zip(NAMES, other.stats, strict=False):
            if value >= 0:
                assert mine.figures[prefix + name] == pytest.approx(100 * value, abs=1e-9)
            else:
                assert prefix + name not in mine.figures
    assert 5 < mine.figures[f"{prefix}ap"] < 95
    per_class = list(mine.per_class[f"{prefix}ap"].values())
    assert sum(per_class) / len(per_class) == pytest.approx(mine.figures[f"{prefix}ap"], abs=1e-9)


def perfect(part):
    records = []
    for index, entry in enumerate(part.images):
        target = part.target(index, masks=True)
        found = target | {"scores": torch.ones(len(target["labels"])), "masks": target["masks"][:, None].float()}
        records += records_of(found, entry.id, tuple(part.categories))
    return records


def test_the_truth_itself_scores_a_hundred_and_nothing_scores_nothing(folder):
    part = load(folder).validation
    best, none = coco_scores(part, perfect(part), masks=True), coco_scores(part, [], masks=True)
    assert best.figures["ap"] == best.figures["mask_ap75"] == pytest.approx(100)
    assert none.figures["ap"] == none.figures["mask_ap"] == 0
    assert best.figures.keys() == none.figures.keys()
    assert list(best.per_class["ap"].values()) == pytest.approx([100] * 4)


def rewritten(folder, to, change):
    content = json.loads((folder / "val.json").read_text())
    change(content)
    to.mkdir()
    for name in ("train.json", "train", "val"):
        (to / name).symlink_to(folder / name)
    (to / "val.json").write_text(json.dumps(content))
    return load(to).validation


def test_annotations_may_be_counted_from_zero(folder, tmp_path):
    """For pycocotools the id 0 means "no match"."""

    def renumber(content):
        for number, one in enumerate(content["annotations"]):
            one["id"] = number

    part = rewritten(folder, tmp_path / "set", renumber)
    assert coco_scores(part, perfect(part), masks=True).figures["ap"] == pytest.approx(100)


def test_what_lies_in_a_crowd_is_neither_right_nor_wrong(folder, tmp_path):
    """Guesses in a crowd region lower nothing; without the region they do."""

    def add_crowd(content):
        counts = [0, 128 * 128]
        crowd = {"id": 10**6, "image_id": 1, "category_id": CATEGORY_IDS[0], "iscrowd": 1, "bbox": [0, 0, 128, 128]}
        crowd |= {"area": 128 * 128, "segmentation": {"size": [128, 128], "counts": counts}}
        content["annotations"].append(crowd)

    plain = load(folder).validation
    crowded = rewritten(folder, tmp_path / "set", add_crowd)
    box = {"image_id": 1, "category_id": CATEGORY_IDS[0], "bbox": [2.0, 2.0, 9.0, 9.0], "score": 1.5}
    mask = torch.zeros(128, 128)
    mask[2:11, 2:11] = 1
    records = [*perfect(plain), box | {"segmentation": encode_mask(mask)}]
    with_region, without = coco_scores(crowded, records, masks=True), coco_scores(plain, records, masks=True)
    assert with_region.figures["ap"] == with_region.figures["mask_ap"] == pytest.approx(100)
    assert without.figures["ap"] < 100
    assert without.figures["mask_ap"] < 100
