"""The run folders that the fuzzer damages: supervised and semi-supervised, finished and interrupted, and a comparison.

As a module: what each is made of, the commands that use it, and what those leave behind.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from isda.data import ZCAWhitening
from isda.engine.comparing import run_folder_name
from isda.engine.folder.seal import fingerprint, sealed
from isda.engine.watching.tensorboard import TensorBoard
from isda.train import Hook, Saving, Settings, Stopped, image_task, load_data, train
from isda.train import SemiSettings as Semi

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
SEALS = ("sha256", "config_sha256", "metrics_sha256", "weights_sha256")
"""What files of earlier versions do not have."""


def words_of(settings: dict[str, Any]) -> list[str]:
    """Settings as options of a command."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True)
class Subject:
    """A run folder, or a folder of a comparison, that commands succeed with while it is whole."""

    name: str
    commands: tuple[str, ...]
    sealed: bool = True
    """Whether its files tell if they are as they were written; those of earlier versions do not."""
    compared: bool = False
    interrupted: bool = False


SUBJECTS = (
    Subject("supervised", ("train", "evaluate", "predict", "report")),
    Subject("supervised-interrupted", ("train", "report"), interrupted=True),
    Subject("supervised-earlier", ("train", "evaluate", "predict", "report"), sealed=False),
    Subject("supervised-interrupted-earlier", ("train", "report"), sealed=False, interrupted=True),
    Subject("semi", ("train", "evaluate", "predict", "report")),
    Subject("semi-interrupted", ("train", "report"), interrupted=True),
    Subject("semi-earlier", ("train", "evaluate", "predict", "report"), sealed=False),
    Subject("comparison", ("compare", "report"), compared=True),
)


def command_words(command: str, run: str) -> list[str]:
    """The command on a folder; figures go to the standard output as JSON."""
    if command == "train":
        return ["train", "--resume", "--out", run, "--checkpoint-steps", "3"]
    if command == "compare":
        return ["compare", *words_of(DIGITS), "--methods", *COMPARED, "--seeds", "1", "--out", run, "--json", "-"]
    if command == "report":
        return ["report", run, "--out", "page.html", "--json", "-"]
    return [command, run, *(["image.png"] if command == "predict" else []), "--json", "-"]


def left_behind(command: str, run: Path, output: str) -> dict[str, Any]:
    """What a command that succeeded has found or made, without times."""
    if command != "train":
        return json.loads(output)
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in (result, *lines):
        record.pop("seconds", None)
    figures = {key: value for key, value in result.items() if key not in SEALS}
    return {"result": figures, "metrics": lines, "weights": fingerprint(run / "model.safetensors")["sha256"]}


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
    """Small colour images under a name whose images are whitened, and an image file."""
    root.mkdir()
    labels = np.arange(2050) % 4
    images = np.random.default_rng(0).integers(0, 120, (2050, 8, 8, 3)) + 30 * labels[:, None, None, None]
    smooth = ((images + np.roll(images, 1, 1) + np.roll(images, 1, 2)) // 3).astype(np.uint8)
    parts = {"x_train": smooth[:2000], "y_train": labels[:2000], "x_test": smooth[2000:], "y_test": labels[2000:]}
    np.savez(root / "cifar10.npz", **parts)
    Image.fromarray(smooth[0]).save(root / "image.png")
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


def reseal(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose content was changed, with the seal of the new one."""
    return sealed({key: value for key, value in record.items() if key != "sha256"})
