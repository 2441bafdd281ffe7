"""Detection runs: folders, taking up to the bit, several processes, and detectors that learn drawn shapes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_detection import SMALL_WORDS, small_run

from isda.lab.engine import Hook, Processes, read_run, train
from isda.lab.tasks.detection.evaluation import load_detector
from isda.lab.tasks.detection.settings import DetectionSettings
from isda.lab.tasks.detection.task import Detection
from many_processes import side_by_side
from resumable_runs import outcome
from shapes import KINDS, draw_set

ALONE = Processes(0, 1, torch.device("cpu"))
WORKER = Path(__file__).with_name("small_detection.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_set) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    small_run(folder, shapes_set)
    return folder


def test_a_run_folder_holds_figures_per_class_and_pictures(whole):
    result = json.loads((whole / "result.json").read_text())
    assert {"ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"} <= result.keys()
    assert set(result["per_class"]) == {"ap", "mask_ap"}
    assert set(result["per_class"]["ap"]) <= set(KINDS)
    pictures = sorted((whole / "pictures").glob("*.png"))
    assert len(pictures) == 3
    with Image.open(pictures[0]) as picture:
        assert picture.size == (2 * 320 + 4, 320)
    assert read_run(whole).value == result["ap"]


def test_the_finished_detector_measures_what_its_run_measured(whole, shapes_set):
    trained = load_detector(whole)
    scores = trained.measure(Detection().load(str(shapes_set)), torch.device("cpu"))
    result = json.loads((whole / "result.json").read_text())
    assert scores.per_class == result["per_class"]
    assert {name: result[name] for name in scores.figures} == scores.figures


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupted_run_ends_in_the_same_bits(whole, shapes_set, tmp_path, step):
    """Killed within the first epoch and at its end; 7 images make 2 steps of 3 per epoch."""

    class Killed(Exception):
        pass

    class Kill(Hook):
        def step(self, number):
            if number == step:
                raise Killed

    with pytest.raises(Killed):
        small_run(tmp_path / "run", shapes_set, hooks=[Kill()])
    small_run(tmp_path / "run", shapes_set)
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.slow
def test_a_killed_process_is_taken_up_to_the_bit(whole, shapes_set, tmp_path):
    folder = tmp_path / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "isda", "detect", "train", "--out", str(folder), "--checkpoint-steps", "1"]
    command += ["--keep", "9", "--threads", "1", "--resume"]
    process = subprocess.Popen([*command, "--data", str(shapes_set), *SMALL_WORDS], env=environment)
    while not list(folder.glob("checkpoints/step-*.pt")):
        assert process.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() in (-signal.SIGKILL, 0)
    # With its own settings: the command line names none.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "box AP" in done.stdout or "is finished already" in done.stdout
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_two_processes_train_what_one_does(shapes_set, tmp_path):
    """Batches of 3 leave 2 images to the first process and 1 to the second."""
    small_run(tmp_path / "one", shapes_set, ALONE, batch_norm="frozen", precision="float64")
    side_by_side(2, WORKER, tmp_path / "two", shapes_set)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-9, atol=1e-9)
    first, second = (outcome(tmp_path / name) for name in ("one", "two"))
    for mine, theirs in zip(first["metrics"], second["metrics"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-9)


def test_a_run_is_not_taken_up_with_other_data(whole, shapes_set, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    other = draw_set(tmp_path / "shapes", train=7, validation=3, size=64, largest=40, seed=1)
    with pytest.raises(ValueError, match="the data set has changed since the run was started"):
        small_run(tmp_path / "run", other)


SLOW = {
    "backbone": "fast-cnn",
    "backbone_options": {"width": "0.75"},
    "min_size": 128,
    "max_size": 128,
    "fpn_channels": 32,
    "head_dim": 128,
    "proposals": 100,
    "box_samples": 64,
    "batch_size": 4,
    "lr": 0.02,
    "epochs": 8,
    "evaluate_every": 8,
    "channels_last": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mask-rcnn", "cascade-mask-rcnn"])
def test_detectors_find_shapes_in_images_they_have_not_seen(network, tmp_path):
    """150 images of 1 to 6 overlapping shapes of 16 to 96 pixels, by both kinds of heads. Chance is about 0."""
    folder = draw_set(tmp_path / "shapes", train=150, validation=40, size=128)
    task = Detection()
    data = task.load(str(folder))
    config = task.resolve(DetectionSettings(network=network, **SLOW), data)
    result = train(config, data, tmp_path / "run", task=task)
    assert result["ap50"] > 50
    assert result["mask_ap50"] > 50
