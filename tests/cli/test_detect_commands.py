"""The commands `isda detect` and `isda export` as a user types them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from isda.lab.data.coco import decode_mask
from shapes import draw_set
from small_runs import isda

WORDS = ["--network", "mask-rcnn", "--backbone", "fast-cnn", "--backbone-options", "width", "0.25", "--min-size", "64"]
WORDS += ["--max-size", "64", "--fpn-channels", "8", "--head-dim", "16", "--proposals", "30", "--box-samples", "16"]
WORDS += ["--batch-size", "3", "--epochs", "1"]


@pytest.fixture(scope="module")
def shapes_set(tmp_path_factory):
    return draw_set(tmp_path_factory.mktemp("drawn") / "shapes", train=6, validation=2, size=64, largest=40)


@pytest.fixture(scope="module")
def run(tmp_path_factory, shapes_set):
    folder = tmp_path_factory.mktemp("runs") / "run"
    out, _, code = isda("detect", "train", "--data", shapes_set, *WORDS, "--out", folder)
    assert code is None
    result = json.loads((folder / "result.json").read_text())
    assert out.splitlines()[-1].startswith(f"box AP {result['ap']:.1f}%")
    return folder


def test_evaluate_prints_what_the_run_measured(run, tmp_path):
    out, _, code = isda("detect", "evaluate", run, "--json", tmp_path / "scores.json")
    assert code is None
    result, scores = (json.loads(file.read_text()) for file in (run / "result.json", tmp_path / "scores.json"))
    assert scores["ap"] == result["ap"]
    assert scores["per_class"] == result["per_class"]
    for heading in ("box AP, %", "box AP50, %", "mask AP75, %", "square"):
        assert heading in out


def test_predict_draws_and_lists_objects(run, shapes_set, tmp_path):
    images = sorted((shapes_set / "val").iterdir())
    words = ["--out", tmp_path / "pictures", "--score", "0", "--json", tmp_path / "found.json"]
    out, _, code = isda("detect", "predict", run, *images, *words)
    assert code is None
    records = json.loads((tmp_path / "found.json").read_text())
    assert [record["image"] for record in records] == list(map(str, images))
    assert len(out.splitlines()) == 2
    for record in records:
        with Image.open(record["picture"]) as picture:
            assert picture.size == (320, 320)
        for one in record["objects"]:
            assert one["name"] in ("square", "disc", "triangle", "star")
            assert len(one["bbox"]) == 4
            assert decode_mask(one["segmentation"], 64, 64).shape == (64, 64)


def test_a_finished_run_is_not_trained_again(run):
    out, _, code = isda("detect", "train", "--out", run, "--resume")
    assert (out.strip(), code) == (f"{run} is finished already", None)


def test_a_run_is_reported_with_figures_per_class_and_pictures(run, tmp_path):
    out, _, code = isda("report", run, "--out", tmp_path / "report.html")
    assert code is None
    assert "box AP" in out
    page = (tmp_path / "report.html").read_text()
    for word in ("box AP, %", "square", "data:image/png"):
        assert word in page


@pytest.mark.slow
def test_backbones_are_compared_seed_by_seed_and_reported(shapes_set, tmp_path):
    words = [word for word in WORDS if word not in ("--backbone", "fast-cnn", "--backbone-options", "width", "0.25")]
    words[words.index("mask-rcnn")] = "faster-rcnn"
    methods = ["multi-task:backbone=fast-cnn", "multi-task:backbone=resnet-8"]
    out, _, code = isda(
        *("detect", "compare", "--data", shapes_set, *words, "--methods", *methods, "--seeds", 1),
        *("--out", tmp_path / "both", "--json", tmp_path / "table.json"),
    )
    assert code is None
    assert "box AP" in out
    page = (tmp_path / "both" / "report.html").read_text()
    for word in ("box AP, %", "backbone=resnet-8", "square", "data:image/png"):
        assert word in page
    assert len(list((tmp_path / "both").glob("*/seed-*/result.json"))) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["detect", "train", "--data", "nowhere"], "the set 'nowhere' is not there"),
        (["detect", "evaluate", "nowhere"], "no run in nowhere"),
        (["detect", "predict", "nowhere", "image.png"], "image.png does not exist"),
        (["detect", "predict", "nowhere", "a/x.png", "b/x.png"], "images must have different file names"),
        (["detect", "predict", "nowhere", "image.png", "--score", "2"], r"score must lie in 0..1, got 2.0"),
        (["detect", "tarin"], "no command 'detect tarin'; did you mean 'train'?"),
        (["export", "nowhere", "--out", "x.pth"], "no run in nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(words, sentence):
    _, _, code = isda(*words)
    assert isinstance(code, str)
    assert sentence in code
    assert "\n" not in code


def test_commands_of_other_tasks_do_not_take_detectors(run, finished_run):
    assert "must be of a classifier of images, got the task 'detection'" in str(isda("evaluate", run)[2])
    assert "must be of a detector, got the task 'classification'" in str(isda("detect", "evaluate", finished_run)[2])
    assert "got the task 'detection'" in str(isda("export", run, "--out", "x.pth")[2])


def test_small_networks_are_not_exported(finished_run, tmp_path):
    _, _, code = isda("export", finished_run, "--for", "timm", "--out", tmp_path / "x.pth")
    assert "timm has no network fast-cnn; there are resnet-50" in str(code)
    assert not list(tmp_path.iterdir())


def test_an_image_without_width_is_refused_by_name(run, tmp_path):
    Image.new("RGB", (20000, 1)).save(tmp_path / "line.png")
    _, _, code = isda("detect", "predict", run, tmp_path / "line.png", "--out", tmp_path / "out")
    assert code.startswith(f"isda: {tmp_path / 'line.png'}: images must have a long side of at most ")
    assert code.endswith("got 20000 x 1 pixels")
    assert not (tmp_path / "out").exists()
