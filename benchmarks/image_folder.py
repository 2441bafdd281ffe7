"""A folder of real images to fine-tune on: some of CIFAR-10's or CIFAR-100's, enlarged, as PNG files.

    python benchmarks/image_folder.py cifar100.npz FOLDER

FOLDER/train/CLASS and FOLDER/test/CLASS get the first images of each class of the training and the test part.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from torch import Tensor

from isda.lab.data import load

__all__ = ["SIDE", "TEST_IMAGES", "TRAINING_IMAGES", "write_folder"]

TRAINING_IMAGES, TEST_IMAGES = 40, 15
"""Of each class."""
SIDE = 128


def write_folder(source: Path, folder: Path) -> None:
    """Write images of an .npz file, if the folder is not there yet."""
    if folder.is_dir():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    data = load(str(source))
    assert isinstance(data.x_train, Tensor)
    assert isinstance(data.x_test, Tensor)
    parts = (("train", data.x_train, data.y_train, TRAINING_IMAGES), ("test", data.x_test, data.y_test, TEST_IMAGES))
    for part, images, labels, count in parts:
        for label, name in enumerate(data.classes):
            (unfinished / part / name).mkdir(parents=True)
            for number in (labels == label).nonzero().flatten()[:count].tolist():
                image = Image.fromarray(images[number].permute(1, 2, 0).numpy())
                enlarged = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                enlarged.save(unfinished / part / name / f"{number:05}.png")
    unfinished.rename(folder)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
