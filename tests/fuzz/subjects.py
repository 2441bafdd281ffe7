"""The run folders that the fuzzers damage, of every task, finished and interrupted, and the data of random options.

As a module: what each is made of, the commands that use it, and what those leave behind.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from commands import run
from isda.lab.data import ZCAWhitening
from isda.lab.engine.callbacks import TensorBoard
from isda.lab.engine.comparison import run_folder_name
from isda.lab.engine.digests import file_digest, with_digest
from isda.lab.train import Hook, Saving, Settings, Stopped, image_task, load_data, train
from isda.lab.train import SemiSettings as Semi

sys.path.append(str(Path(__file__).parents[1]))

import segmentation_runs
import shapes

SHARED: dict[str, Any] = {"network": "fast-cnn", "width": 0.1}
DIGITS: dict[str, Any] = SHARED | {"data": "digits", "labels": 20, "batch_size": 10, "epochs": 2}
WHITENED: dict[str, Any] = SHARED | {
    "data": "cifar10",
    "method": "mean-teacher+isda",
    "labels": 20,
    "unlabelled": 40,
    "batch_size": 20,
    "labelled_per_batch": 6,
    "epochs": 2,
}
COMPARED = ("cross-entropy", "isda")
TINY = {"network": "fast-cnn", "width": "0.1", "labels": "20", "batch-size": "10", "epochs": "1"}
SCENES = {
    "data": "scenes",
    "network": "pspnet-resnet-18",
    "width": "0.0625",
    "output-stride": "32",
    "crop": "17",
    "batch-size": "2",
    "epochs": "1",
}
SHAPES = {
    "data": "shapes",
    "network": "mask-rcnn",
    "backbone": "fast-cnn",
    "backbone-options": "width 0.1",
    "min-size": "32",
    "max-size": "32",
    "fpn-channels": "4",
    "head-dim": "4",
    "proposals": "5",
    "box-samples": "4",
    "batch-size": "3",
    "epochs": "1",
}
IMAGES = {"width": "0.05", "labels": "20", "batch-size": "10", "epochs": "1", "noise": "4"}
TIMM = {"network": "timm:test_resnet", "labels": "20", "batch-size": "10", "epochs": "1"}
STUDIED = {**TINY, "methods": "isda", "values": "0.5", "seeds": "1"}
REPRODUCED = ("table-2", "--only", "ResNet-32", "CIFAR-10", "basic", "--seeds", "1")
SEALS = ("sha256", "config_sha256", "metrics_sha256", "weights_sha256")
"""What files of earlier versions do not have."""


def words_of(settings: dict[str, Any]) -> list[str]:
    """Settings as options of a command."""
    pairs = ((f"--{name.replace('_', '-')}", str(value).split(" ")) for name, value in settings.items())
    return [word for option, values in pairs for word in (option, *values)]


@dataclass(frozen=True)
class Subject:
    """A run folder, or a folder of a comparison, that commands succeed with while it is whole."""

    name: str
    commands: tuple[str, ...]
    sealed: bool = True
    """Whether its files tell if they are as they were written; those of earlier versions do not."""
    compared: bool = False
    interrupted: bool = False


LOOKED_AT = ("directions", "map", "tightness", "explore", "embed", "visualize", "transfer")
SUBJECTS = (
    Subject("supervised", ("train", "evaluate", "predict", "report", *LOOKED_AT)),
    Subject("supervised-interrupted", ("train", "report"), interrupted=True),
    Subject("supervised-earlier", ("train", "evaluate", "predict", "report"), sealed=False),
    Subject("supervised-interrupted-earlier", ("train", "report"), sealed=False, interrupted=True),
    Subject("semi", ("train", "evaluate", "predict", "report")),
    Subject("semi-interrupted", ("train", "report"), interrupted=True),
    Subject("semi-earlier", ("train", "evaluate", "predict", "report"), sealed=False),
    Subject("comparison", ("compare", "report"), compared=True),
    Subject("study", ("study",), compared=True),
    Subject("reproduction", ("reproduce",), compared=True),
    Subject("segmentation", ("segment train", "segment evaluate", "segment predict", "report")),
    Subject("detection", ("detect train", "detect evaluate", "detect predict", "report")),
    Subject("generation", ("generate train", "generate evaluate", "generate sample", "report")),
    Subject("timm", ("export", "evaluate", "train")),
)


def command_words(command: str, run: str) -> list[str]:
    """The command on a folder; figures go to the standard output as JSON."""
    words = command.split()
    if words[-1] == "train":
        return [*words, "--resume", "--out", run, "--checkpoint-steps", "3"]
    if command == "compare":
        return ["compare", *words_of(DIGITS), "--methods", *COMPARED, "--seeds", "1", "--out", run, "--json", "-"]
    if command == "study":
        return ["study", "sensitivity", *words_of(STUDIED), "--out", run, "--json", "-"]
    if command == "reproduce":
        return ["reproduce", *REPRODUCED, "--out", run, "--json", "-"]
    if command == "embed":
        few = ("--train", "10", "--test", "10", "--out", "new.npz")
        return ["embed", "--data", "digits", "--network", run, *few, "--json", "-"]
    if command == "explore":
        return ["explore", run, "--most", "20", "--no-open"]
    if command == "export":
        return ["export", run, "--for", "timm", "--out", "new.safetensors"]
    few = {
        "predict": ("image.png",),
        "report": ("--out", "page.html"),
        "segment predict": ("image.png",),
        "detect predict": ("image.png", "--score", "0"),
        "directions": ("--most", "20"),
        "map": ("--images", "40", "--perplexity", "5"),
        "tightness": ("--images", "10", "--draws", "4"),
        "visualize": ("--generator", "generator", "--images", "2", "--augmented", "1", "--iterations", "2"),
        "transfer": ("--data", "two-classes", "--out", "new"),
    }
    json_words = [] if command == "generate sample" else ["--json", "-"]
    return [*words, run, *few.get(command, ()), *json_words]


MADE = {
    "segment predict": "predictions/image.png",
    "detect predict": "detections/image.png",
    "generate sample": "samples.png",
    "export": "new.safetensors",
}
"""Files that commands write, beside what they print."""


def left_behind(command: str, run: Path, output: str) -> dict[str, Any]:
    """What a command that succeeded has found or made, without times."""
    if command.endswith("train"):
        result = json.loads((run / "result.json").read_text())
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        figures = {key: value for key, value in result.items() if key not in SEALS}
        weights = file_digest(run / "model.safetensors")["sha256"]
        return {"result": _without_times(figures), "metrics": _without_times(lines), "weights": weights}
    found = json.loads(output) if output.lstrip()[:1] in ("{", "[") else output.partition(" at http://")[0]
    file = Path(MADE[command]) if command in MADE else None
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file else None
    return {"told": _without_times(found), "file": digest}


def _without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: _without_times(value) for key, value in record.items() if key != "seconds"}
    return [_without_times(one) for one in record] if isinstance(record, list) else record


class _Stop(Hook):
    def step(self, step: int) -> None:
        if step == 3:
            raise Stopped("enough")


def _made(settings: dict[str, Any], folder: Path, *, interrupted: bool = False) -> Path:
    kind = Semi if "unlabelled" in settings else Settings
    asked = kind(**settings)
    data = load_data(asked)
    config = image_task(asked.method).resolve(asked, data)
    hooks: list[Hook] = [TensorBoard(), *([_Stop()] if interrupted else [])]
    try:
        train(config, data, folder, saving=Saving(steps=1), hooks=hooks)
    except Stopped:
        assert interrupted
    return folder


def _of_earlier_version(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target)
    for file in (target / name for name in ("config.json", "environment.json", "result.json")):
        if file.exists():
            record = json.loads(file.read_text())
            file.write_text(json.dumps({key: value for key, value in record.items() if key not in SEALS}, indent=1))


def make_data(root: Path) -> None:
    """Small colour images under a name whose images are whitened, an image file, strange ones, scenes and shapes."""
    root.mkdir()
    labels = np.arange(2050) % 4
    images = np.random.default_rng(0).integers(0, 120, (2050, 8, 8, 3)) + 30 * labels[:, None, None, None]
    smooth = ((images + np.roll(images, 1, 1) + np.roll(images, 1, 2)) // 3).astype(np.uint8)
    parts = {"x_train": smooth[:2000], "y_train": labels[:2000], "x_test": smooth[2000:], "y_test": labels[2000:]}
    np.savez(root / "cifar10.npz", **parts)
    two = {name: part[np.flatnonzero(parts[f"y{name[1:]}"] < 2)[:20]] for name, part in parts.items()}
    np.savez(root / "two-classes.npz", **two)
    Image.fromarray(smooth[0]).save(root / "image.png")
    Image.fromarray(np.tile(smooth[0], (1, 250, 1))[:1]).save(root / "wide.png")
    few = {name: part[:40] for name, part in parts.items()}
    labels = few["y_train"]
    names = np.array(["\x1b[31mred", "\x07bell", "a\nb", "é🙂"])
    strange: dict[str, dict[str, Any]] = {
        "wild": {"y_train": np.where(labels == 3, 4294967295, labels)},
        "strings": {"y_train": labels.astype(str)},
        "one-class": {"y_train": labels * 0, "y_test": labels * 0},
        "escapes": {"classes": names},
        "from-one": {"y_train": labels + 1, "y_test": labels + 1},
        "floats": {"x_train": few["x_train"] / 255},
        "four-channels": {name: np.tile(few[name], (1, 1, 1, 2))[..., :4] for name in ("x_train", "x_test")},
        "two-images": {name: part[:2] for name, part in few.items()},
        "\x1b[31mred": {},
    }
    for name, changes in strange.items():
        np.savez(root / f"{name}.npz", **(few | changes))
    (root / "cut.npz").write_bytes((root / "escapes.npz").read_bytes()[:1000])
    (root / "empty").mkdir()
    for part, name in itertools.product(("train", "test"), "ab"):
        (root / "photos" / part / name).mkdir(parents=True)
        for index, size in enumerate((9, 12, 16, 40)):
            picture = Image.fromarray(smooth[index]).resize((size, 2 * size))
            picture.save(root / "photos" / part / name / f"{index}.png")

    _make_scenes(root)
    _make_shapes(root)


def _make_scenes(root: Path) -> None:
    """Pixels with classes, and the same with something wrong: in the name of the folder stands what."""
    good = segmentation_runs.draw(root / "scenes", {"train": 4, "val": 2, "test": 2})
    for name in ("ignored-validation", "ignored-training", "other-size", "no-labels", "out-of-range", "no-classes"):
        shutil.copytree(good, root / f"scenes-{name}")
    for name, part in (("ignored-validation", "val"), ("ignored-training", "train")):
        for file in (root / f"scenes-{name}" / "labels" / part).iterdir():
            Image.fromarray(np.full((26, 34), 255, np.uint8)).save(file)
    for name, labels in (("other-size", np.zeros((9, 9), np.uint8)), ("out-of-range", np.full((26, 34), 77, np.uint8))):
        Image.fromarray(labels).save(next((root / f"scenes-{name}" / "labels" / "train").iterdir()))
    shutil.rmtree(root / "scenes-no-labels" / "labels")
    (root / "scenes-no-classes" / "classes.txt").write_text("")


def _make_shapes(root: Path) -> None:
    """Objects in COCO's format, and the same with something wrong."""
    good = shapes.draw_set(root / "shapes", 3, 2, size=64, most=2, largest=40)
    content = json.loads((good / "train.json").read_text())
    box = content["annotations"][0]
    wrong: dict[str, dict[str, Any]] = {
        "outside": {"annotations": [box | {"bbox": [1e9, 1e9, 5, 5]}]},
        "negative": {"annotations": [box | {"bbox": [5, 5, -5, -5]}]},
        "not-finite": {"annotations": [box | {"bbox": [math.nan, 1, 5, 5]}]},
        "unknown-category": {"annotations": [box | {"category_id": 77}]},
        "unknown-image": {"annotations": [box | {"image_id": 77}]},
        "twice": {"images": content["images"] * 2},
        "elsewhere": {"images": [content["images"][0] | {"file_name": "../../image.png"}]},
        "no-file": {"images": [content["images"][0] | {"file_name": "nowhere.png"}]},
        "other-size": {"images": [content["images"][0] | {"height": 7}, *content["images"][1:]]},
        "no-objects": {"annotations": []},
        "crowds": {"annotations": [one | {"iscrowd": 1} for one in content["annotations"]]},
        "odd-mask": {"annotations": [box | {"segmentation": [[1, 2, 3]]}]},
        "list": {"categories": 5},
    }
    for name, changes in wrong.items():
        shutil.copytree(good, root / f"shapes-{name}")
        (root / f"shapes-{name}" / "train.json").write_text(json.dumps(content | changes))


def make_subjects(top: Path) -> None:
    """All of them, and under top/others runs whose files may take the place of theirs."""
    for name, settings in (("supervised", DIGITS), ("semi", WHITENED)):
        for suffix, interrupted in (("", False), ("-interrupted", True)):
            _made(settings, top / f"{name}{suffix}", interrupted=interrupted)
            _made(settings | {"seed": 1}, top / "others" / f"{name}{suffix}", interrupted=interrupted)
            _of_earlier_version(top / f"{name}{suffix}", top / f"{name}{suffix}-earlier")
    for other in ("semi", "semi-interrupted"):
        images = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        ZCAWhitening.fit(images).save(top / "others" / other / "whitening.safetensors", "another data set")
    for method in COMPARED:
        _made(DIGITS | {"method": method}, top / "comparison" / run_folder_name(method, 0))
        _made(DIGITS | {"method": method, "seed": 1}, top / "others" / "comparison" / run_folder_name(method, 0))
    judge = {"judge": str(top / "supervised")}
    trained: dict[str, tuple[str, dict[str, str]]] = {
        "segmentation": ("segment train", SCENES),
        "detection": ("detect train", SHAPES),
        "generation": ("generate train", IMAGES | judge),
        "timm": ("train", TIMM),
        "study": ("study sensitivity", STUDIED),
    }
    for name, (command, settings) in trained.items():
        for seed, folder in (("0", top / name), ("1", top / "others" / name)):
            _made_by(*command.split(), *words_of(settings), "--seed", seed, "--out", str(folder))
    for folder in (top / "reproduction", top / "others" / "reproduction"):
        _made_by("reproduce", *REPRODUCED, "--out", str(folder))


def _made_by(*words: str) -> None:
    ended = run(words)
    assert ended.status == 0, (words, ended)


def reseal(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose content was changed, with the seal of the new one."""
    return with_digest({key: value for key, value in record.items() if key != "sha256"})
