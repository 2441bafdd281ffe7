"""GAN training as a task of the engine: resolving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from isda import __version__
from isda.lab.data import CATALOGUE, DataSet, load
from isda.lab.engine.config import RunConfig
from isda.lab.engine.options import split_method
from isda.lab.engine.settings import AUTO, Recipe, RunSettings
from isda.lab.engine.task import Job, RunContext, Task
from isda.lab.networks.generative import SIZES
from isda.lab.tasks.common.data import count_training_images, split_data
from isda.lab.tasks.common.generators import GENERATION_TASK
from isda.lab.tasks.gan.evaluation import curves_for, figures_for, load_judge
from isda.lab.tasks.gan.job import GenerationJob
from isda.lab.tasks.gan.methods import METHODS, GenerativeMethod, Players, find_method
from isda.lab.tasks.gan.settings import BATCH_SIZE, EVALUATIONS, GANConfig, GANSettings, recipe_for


def create_players(config: GANConfig, method: type[GenerativeMethod]) -> Players:
    """Generator and discriminator, with random weights."""
    return Players(method.make_generator(config), method.make_discriminator(config))


def resolve(settings: GANSettings, data: DataSet) -> GANConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set.
    """
    name, words = split_method(settings.method or "acgan")
    method = find_method(name)
    if settings.network not in (AUTO, method.network):
        raise ValueError(f"network must be {method.network} for method {name}, got {settings.network!r}")
    _check_images(data)
    images = count_training_images(settings.held_out, settings.labels, len(data.y_train))
    batch_size = _batch_size(settings, method, data.num_classes, images)
    options = method.resolve(words, Recipe({}))
    turns = method.turns(options)
    recipe = settings.shortened(recipe_for(method.optimiser(options), images // batch_size, turns))
    values = settings.resolved(recipe | {"evaluate_every": max(1, recipe["epochs"] // EVALUATIONS)})
    if "data" in values["settings"] and data.name not in CATALOGUE and data.source:
        # A relative path is found again from wherever the run is taken up.
        values["settings"] |= {"data": data.source}
    if settings.judge:
        judge = {"judge": str(Path(settings.judge).absolute())}
        values["settings"] |= judge
        values |= judge | {"judge_sha256": load_judge(Path(settings.judge), data).sha256}
    evaluated_on = "held-out" if settings.held_out else "test"
    test_images = settings.held_out or len(data.y_test)
    if test_images < 2:
        raise ValueError(
            f"held_out must be at least 2 for generators, which compare pairs of images, got {test_images}"
        )
    values |= {
        "task": GENERATION_TASK,
        "data": data.name,
        "data_digest": data.digest,
        "network": method.network,
        "codes": method.codes,
        "method": name,
        "method_options": options,
        "batch_size": batch_size,
        "steps_per_epoch": images // batch_size,
        "evaluated_on": evaluated_on,
        "figures": figures_for(evaluated_on),
        "curves": curves_for(evaluated_on),
        "classes": data.classes,
        "channels": data.channels,
        "image_size": data.image_size,
        "train_images": images,
        "test_images": test_images,
        "version": __version__,
    }
    config = GANConfig(**values)
    _check_classes(config, data)
    return config


def _check_images(data: DataSet) -> None:
    """Raise a ValueError unless the images have a size that generators can have."""
    if not isinstance(data.x_train, Tensor) or data.image_size is None:
        raise ValueError(f"generators need images of one size in memory, {data.name} is decoded on access")
    height, width = data.image_size
    if height != width or height not in SIZES:
        sizes = ", ".join(f"{side}x{side}" for side in SIZES)
        raise ValueError(f"images must be of {sizes} pixels for generators, those of {data.name} are {height}x{width}")


def _batch_size(settings: GANSettings, method: type[GenerativeMethod], classes: int, images: int) -> int:
    """The given one, or 64; 64 of each class where every class has networks of its own."""
    unit = classes if method.balanced else 1
    size = settings.batch_size
    if size is AUTO:
        size = max(1, min(BATCH_SIZE, images // unit)) * unit
    if not 0 < size <= images:
        raise ValueError(f"batch_size must be from 1 to {images}, the training images, got {size}")
    if size % unit:
        raise ValueError(f"batch_size must be a multiple of the {classes} classes for method {method.name}, got {size}")
    return size


def _check_classes(config: GANConfig, data: DataSet) -> None:
    """Every class can be learnt, and the labelled subset can be drawn."""
    try:
        training, _ = split_data(config, data)
    except ValueError as error:
        raise ValueError(f"labels={config.labels} does not fit {data.name}: {error}") from error
    counts = data.y_train[training].bincount(minlength=data.num_classes)
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"every class must have training images to be generated, {data.classes[empty[0]]!r} of {data.name} has none"
        )


class Generation(Task):
    """A generator and a discriminator that learn from each other."""

    name = GENERATION_TASK
    settings_type: ClassVar[type[RunSettings]] = GANSettings
    config_type: ClassVar[type[RunConfig]] = GANConfig

    def methods(self) -> Sequence[str]:
        """The paper's four."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> DataSet:
        """The data set of a name or a file; scikit-learn's digits by default."""
        return load(data or "digits", root)

    def resolve(self, settings: GANSettings, data: DataSet) -> GANConfig:
        """See `isda.lab.tasks.gan.task`."""
        return resolve(settings, data)

    def start(self, config: GANConfig, data: DataSet, context: RunContext) -> Job:
        """The run, before its first step."""
        kind = find_method(config.method)
        torch.manual_seed(config.seed)
        players = create_players(config, kind).to(device=context.processes.device, dtype=config.dtype)
        method = kind.create(players, config).to(context.processes.device)
        return GenerationJob(config, data, players, method, context)
