"""Segmentation as a user runs it: `isda segment train|compare|evaluate|predict` on tiny drawn images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segmentation_runs import CLASSES, HEIGHT, SMALL_WORDS, WIDTH, draw, drawn
from small_runs import isda


def segment(*words: object) -> tuple[str, str, str | int | None]:
    return isda("segment", *words)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["--data", drawn().source, "--epochs", 8, "--method", "isda:lambda_0=1", "--threads", 1]
    out, _, code = segment("train", *SMALL_WORDS, *words, "--out", folder)
    assert code is None
    assert "validation mIoU" in out
    return folder


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_finished_run_is_not_repeated_and_its_settings_are_its_own(trained):
    before = (trained / "result.json").read_bytes()
    assert segment("train", "--resume", "--out", trained)[0].strip().endswith("is finished already")
    assert "holds a run with lr=0.05, not 0.5" in segment("train", "--resume", "--out", trained, "--lr", 0.5)[2]
    assert (trained / "result.json").read_bytes() == before


def test_evaluate_repeats_the_figures_of_the_run(trained):
    out, _, code = segment("evaluate", trained, "--json", "-")
    assert code is None
    written, result = json.loads(out), result_of(trained)
    assert written["miou"] == pytest.approx(result["miou"])
    assert written["per_class"]["iou"] == pytest.approx(result["per_class"]["iou"])
    assert (written["evaluated_on"], written["scales"], written["flip"]) == ("validation", [1.0], False)
    table = segment("evaluate", trained)[0]
    assert all(name in table for name in (*CLASSES, "mIoU, %", "pixel accuracy, %"))
    assert f"{result['miou']:.2f}" in table


@pytest.mark.parametrize(
    "words", [["--scales", "0.75", "1", "1.25", "1.5"], ["--scales", "1", "1.5", "--flip"], ["--window", "20x26"]]
)
def test_evaluate_takes_scales_flips_and_windows(trained, words):
    out, _, code = segment("evaluate", trained, *words, "--part", "test", "--json", "-")
    assert code is None
    written = json.loads(out)
    assert written["evaluated_on"] == "test"
    assert 20 < written["miou"] <= 100


def test_evaluate_finds_the_classes_of_other_data_by_name(trained, tmp_path):
    """The same scenes with other numbers for the classes, and another name: the same figures."""
    other = draw(tmp_path / "other", {"train": 11, "val": 5, "test": 3})
    for path in other.glob("labels/*/*.png"):
        ids = np.array(Image.open(path))
        Image.fromarray(np.where(ids == 255, 255, 2 - ids.astype(int)).astype(np.uint8)).save(path)
    (other / "classes.txt").write_text("\n".join(reversed(CLASSES)))
    written = json.loads(segment("evaluate", trained, "--data", other, "--json", "-")[0])
    assert written["miou"] == pytest.approx(result_of(trained)["miou"])
    (other / "classes.txt").write_text("ground\nwall\ncube")
    message = segment("evaluate", trained, "--data", other)[2]
    assert "data must have the 3 classes of the run; other lacks 'ball' and has 'cube'" in message


def test_predict_writes_labels_and_pictures(trained, tmp_path):
    image = drawn().test.pairs[0].image
    out, _, code = segment("predict", trained, image, "--out", tmp_path / "seen", "--scales", 1, 1.5, "--flip")
    assert code is None
    assert "%" in out
    labels = Image.open(tmp_path / "seen" / image.name)
    assert (labels.mode, labels.size) == ("P", Image.open(image).size)
    truth = drawn().test[0][1].numpy()
    seen = np.array(labels)
    assert ((seen == truth) | (truth == 255)).mean() > 0.6
    assert Image.open(tmp_path / "seen" / f"{image.stem}-overlay.png").mode == "RGB"
    written = json.loads(segment("predict", trained, image, "--out", tmp_path / "seen", "--json", "-")[0])
    assert sum(written[0]["classes"].values()) == pytest.approx(1, abs=1e-6)


def test_compare_makes_a_table_and_a_page_with_classes_and_pictures(tmp_path, monkeypatch):
    """Data by a path relative to where the command runs."""
    monkeypatch.chdir(tmp_path)
    methods = ["--methods", "cross-entropy", "isda:covariance=full"]
    words = ["--data", os.path.relpath(drawn().source), "--threads", 1, "--seeds", 1, "--out", "all", *methods]
    out, err, code = segment("compare", *SMALL_WORDS, *words, "--json", "-")
    assert code is None, err
    (comparison,) = json.loads(out)
    assert [row["method"] for row in comparison["methods"]] == ["cross-entropy", "isda"]
    page = (tmp_path / "all" / "report.html").read_text()
    assert all(name in page for name in CLASSES)
    assert "data:image/png;base64," in page
    assert isda("report", tmp_path / "all", "--out", tmp_path / "again.html")[2] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--crop", "big"], "crop must be a number of pixels, SIDE or HEIGHTxWIDTH, got 'big'"),
        (["--crop", "0x5"], "crop must be a number of pixels"),
        (["--output-stride", "7"], "output_stride must be one of 8, 16, 32, got 7"),
        (["--network", "pspnet-resnet-19"], "did you mean 'pspnet-resnet-18'"),
        (["--method", "isad"], "did you mean 'isda'"),
        (["--method", "isda:lambda_0=-1"], "lambda_0"),
        (["--batch-size", "12"], "batch_size must be from 1 to 11, the training images, got 12"),
        (["--smallest-scale", "3"], "largest_scale must be in order, from 0.01 to 100, got 3.0 and 2.1"),
        (["--auxiliary-weight", "-1"], "auxiliary_weight must lie in 0..100, got -1.0"),
        (["--pretrained", "nowhere.pth"], "pretrained must be torchvision or a file of weights, got 'nowhere.pth'"),
        (["--width", "0"], "width"),
        (["--dropout", "1.5"], "dropout"),
        (["--data", "nowhere"], "unknown data set 'nowhere'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_folder_is_made(tmp_path, words, message):
    data = [] if "--data" in words else ["--data", drawn().source]
    _, _, code = segment("train", *SMALL_WORDS, *data, *words, "--out", tmp_path / "run")
    assert isinstance(code, str)
    assert message in code
    assert code.count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_data_must_be_named_and_the_judging_part_must_have_labels(tmp_path):
    assert "data must be cityscapes, camvid or a folder" in segment("train", "--out", tmp_path / "run")[2]
    folder = draw(tmp_path / "mine", {"train": 4, "val": 2})
    _, _, code = segment("train", *SMALL_WORDS, "--data", folder, "--evaluate-on", "test", "--out", tmp_path / "run")
    assert "evaluate_on must name a part with labels, got test, of which mine has no images" in code
    (folder / "labels/val/scene-004.png").unlink()
    _, _, code = segment("train", *SMALL_WORDS, "--data", folder, "--out", tmp_path / "run")
    assert "scene-004.png has no labels" in code
    assert not (tmp_path / "run").exists()


def test_runs_of_another_task_and_names_given_twice_are_refused(trained, finished_run, tmp_path):
    assert "must be of a segmentation network, got the task 'classification'" in segment("evaluate", finished_run)[2]
    assert "must be of a classifier of images, got the task 'segmentation'" in isda("evaluate", trained)[2]
    image = drawn().test.pairs[0].image
    assert "images must have different file names" in segment("predict", trained, image, image)[2]
    assert "images must name at least one image file" in segment("predict", trained)[2]
    assert "window must be a number of pixels" in segment("evaluate", trained, "--window", "-3")[2]
    assert "none.png does not exist" in segment("predict", trained, tmp_path / "none.png", "--out", tmp_path)[2]


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    folder = draw(tmp_path / "mine", {"train": 4, "val": 2})
    words = [*SMALL_WORDS, "--data", folder, "--epochs", 1, "--out", tmp_path / "run"]
    assert segment("train", *words)[2] is None
    (tmp_path / "run" / "result.json").unlink()
    for place in ("images", "labels"):
        (folder / place / "train" / "scene-000.png").rename(folder / place / "train" / "another.png")
    assert "the data set has changed since the run was started" in segment("train", *words, "--resume")[2]


@pytest.mark.parametrize("part", ["train", "validation"])
def test_labels_that_are_all_ignored_are_refused_before_training(part, tmp_path):
    folder = draw(tmp_path / "scenes", {"train": 4, "validation": 2})
    for file in (folder / "labels" / part).glob("*.png"):
        Image.fromarray(np.full((HEIGHT, WIDTH), 255, np.uint8)).save(file)
    _, _, code = isda("segment", "train", "--data", folder, *SMALL_WORDS, "--out", tmp_path / "run")
    assert f"the {part} part of scenes must have pixels of at least one class" in code
    assert not (tmp_path / "run").exists()
