"""A folder of small images, a file of weights for a tiny model of timm, and runs that fine-tune one on the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from small_runs import isda

MODEL = "test_resnet"
"""Five layers by timm's count: the stem, and four blocks."""
CLASSES = ("blue", "green", "red")
TRAINING, TEST = 12, 5
"""Images of each class."""


def draw_folder(folder: Path, mode: str = "RGB", size: tuple[int, int] = (48, 40)) -> Path:
    """Noise with a tint: one folder per class."""
    random = np.random.default_rng(0)
    for part, count in (("train", TRAINING), ("test", TEST)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 200, (size[1], size[0], 3))
                pixels[..., 2 - label] += 55
                image = Image.fromarray(pixels.astype(np.uint8)).convert(mode)
                image.save(folder / part / name / f"{number:02}.png")
    return folder


def pretrained_model(name: str = MODEL, num_classes: int = 10) -> nn.Module:
    """A model of timm that stands for a trained one: its running figures are not those of a new network."""
    torch.manual_seed(7)
    model = timm.create_model(name, num_classes=num_classes)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
    return model


def write_pretrained(path: Path, **options: object) -> Path:
    """Its weights in a file."""
    state = pretrained_model(**options).state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def words(folder: Path, weights: Path) -> list[str]:
    """Two epochs of four steps."""
    sizes = ["--input-size", "32", "--epochs", "2", "--batch-size", "9"]
    return ["--data", str(folder), "--network", f"timm:{MODEL}", "--pretrained", str(weights), *sizes]


def fine_tune(folder: Path, weights: Path, out: Path, *further: object) -> Path:
    """`isda train` on the folder, from the weights; returns the run folder."""
    _, err, code = isda("train", *words(folder, weights), "--out", out, *further)
    assert code is None, (code, err)
    return out
