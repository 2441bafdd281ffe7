"""Whether a generator fits a run, said before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isda.choices import check_choice
from isda.classification.trained import load_trained
from isda.generators import TrainedGenerator, load_generator

__all__ = ["fitting_pair"]


def fitting_pair(run: Path, generator: Path, classes: Sequence[str] = ()) -> TrainedGenerator:
    """The generator of a run of `isda generate train`, if its images can stand for those of a classifier's run.

    Args:
        run: the folder of the classifier's run.
        generator: that of the generator's.
        classes: names that both must know.

    Raises:
        ValueError: one of the runs is not finished or of another task, or the generator has learnt other data.
    """
    config = load_trained(run).config
    for name in classes:
        check_choice("classes", name, config.classes)
    made = load_generator(generator)
    told = f"generator must have learnt the images of {config.data}, as the run has, got {generator}"
    if made.classes != config.classes:
        raise ValueError(f"{told}, which makes {len(made.classes)} classes of {made.data}")
    size = (made.network.channels, made.network.size, made.network.size)
    if size != (config.channels, *(config.image_size or ())):
        raise ValueError(f"{told}, whose images are {'x'.join(map(str, size))}")
    if made.data_digest != config.data_digest:
        raise ValueError(f"{told}, which has learnt {made.data}, or another version of it")
    return made
