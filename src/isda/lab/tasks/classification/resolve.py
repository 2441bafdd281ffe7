"""Resolve settings into a complete configuration: recipe, data set, user options."""

from __future__ import annotations

import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda import __version__
from isda.lab import networks
from isda.lab.choices import check_choice
from isda.lab.data import CATALOGUE, DataSet
from isda.lab.data.augment import Draws
from isda.lab.engine.options import options_from_text, split_method
from isda.lab.engine.settings import AUTO, Recipe, fit_batch_size, warm_up_steps
from isda.lab.engine.trainer import OPTIMISERS
from isda.lab.methods.registry import find_method
from isda.lab.networks.registry import IMAGENET
from isda.lab.networks.timm_models import TIMM_PREFIX
from isda.lab.tasks.classification.generated import compatible_generator, count_per_batch
from isda.lab.tasks.classification.pipelines import (
    RESIZING,
    check_augmentation,
    default_augmentation,
    training_pipeline,
)
from isda.lab.tasks.classification.pretrained import check_pretrained, pretrained_fields
from isda.lab.tasks.classification.settings import (
    RATES,
    ClassificationConfig,
    ClassificationSettings,
    fine_tuning_recipe,
    recipe_for,
)
from isda.lab.tasks.common.data import count_training_images, images_at, split_data
from isda.lab.tasks.common.evaluation import BASELINES, CURVES, figures_for


def resolve(settings: ClassificationSettings, data: DataSet) -> ClassificationConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set.
    """
    network, recipe = choose_network(settings, data)
    name, words = split_method(settings.method or "isda")
    method = find_method(name)
    values = image_fields(settings, data, network, recipe)
    pretrained = settings.pretrained is not None
    augment = settings.augment or default_augmentation(data, network in IMAGENET and not pretrained, pretrained)
    images = count_training_images(settings.held_out, settings.labels, len(data.y_train))
    size = fit_batch_size(values["batch_size"], images, settings.batch_size is not AUTO)
    values |= {
        "task": "classification",
        "method": name,
        "method_options": method.resolve(words, recipe, settings.part_of("method_options")),
        "augment": check_augmentation(augment),
        "batch_size": size,
        "train_images": images,
        "steps_per_epoch": images // size,
        "warm_up_steps": warm_up_steps(settings.warm_up, recipe, images // size),
    }
    # A comparison with semi-supervised methods has further settings, which are not of this task.
    other = {f.name for f in fields(settings)} - {f.name for f in fields(ClassificationSettings)}
    values = {name: value for name, value in values.items() if name not in other}
    config = ClassificationConfig(**(values | _generated_fields(settings, data, size)))
    try:
        split_data(config, data)
    except ValueError as error:
        raise ValueError(f"labels={config.labels} does not fit {data.name}: {error}") from error
    check_pretrained(config, _augmented(config, data))
    return config


def choose_network(settings: ClassificationSettings, data: DataSet) -> tuple[str, Recipe]:
    """The network's name, and its recipe at the requested scale."""
    network = settings.network or ("resnet-50" if data.name == "imagenet" else "fast-cnn")
    if not network.startswith(TIMM_PREFIX):
        check_choice("network", network, networks.names())
    if settings.optimiser is not AUTO:
        check_choice("optimiser", settings.optimiser, OPTIMISERS)
    if settings.pretrained is not None:
        return network, settings.shortened(fine_tuning_recipe(settings.optimiser, settings.freeze))
    recipe = recipe_for(network, data.name)
    if settings.optimiser not in (AUTO, "sgd"):
        recipe |= RATES[settings.optimiser]
    return network, settings.shortened(recipe)


def image_fields(
    settings: ClassificationSettings, data: DataSet, network: str, recipe: Recipe, held_labels: int = 0
) -> dict[str, Any]:
    """The fields of a configuration that all classifiers of images resolve alike.

    Args:
        settings: of the user.
        data: what to learn from; its test images are not looked at where others judge.
        network: its name.
        recipe: of the network.
        held_labels: how many labelled images are held out to judge by, beside what the settings say.
    """
    _warn_of_classes(data)
    values = settings.resolved(recipe)
    if settings.nesterov is not AUTO and values["optimiser"] != "sgd":
        raise ValueError(f"nesterov is a setting of optimiser sgd, got it for {values['optimiser']}")
    held_out = values["held_out"] or held_labels
    evaluated_on = "held-out" if held_out else "test"
    if "data" in values["settings"] and data.name not in CATALOGUE and data.source:
        # A relative path is found again from wherever the run is taken up.
        values["settings"] |= {"data": data.source}
    if settings.generated is not None:
        values["settings"] |= {"generated": str(Path(settings.generated).absolute())}
    values |= {
        "data": data.name,
        "data_digest": data.digest,
        "network": network,
        "network_options": _network_options(settings, data),
        "evaluated_on": evaluated_on,
        "figures": figures_for(evaluated_on, data.num_classes),
        "curves": CURVES,
        "baselines": BASELINES,
        "classes": data.classes,
        "test_images": held_out or len(data.y_test),
        "version": __version__,
    }
    # How the network sees images; to find the statistics of a folder means to decode all of it.
    pretrained = pretrained_fields(settings, network, values["network_options"])
    if pretrained:
        values["settings"] |= {"pretrained": pretrained["pretrained"]}
        return values | pretrained
    size = {"channels": data.channels, "image_size": data.image_size}
    return values | {"mean": data.mean, "std": data.std, **size}


def _warn_of_classes(data: DataSet) -> None:
    """Say what is odd about the classes, and may well be meant."""
    if data.num_classes == 1:
        warnings.warn(f"{data.name} has one class only: every answer will be right", stacklevel=3)
    empty = (data.y_train.bincount(minlength=data.num_classes) == 0).nonzero().flatten().tolist()
    if empty:
        first = data.classes[empty[0]]
        hint = "; labels count from 0" if empty == [0] else ""
        warnings.warn(
            f"{len(empty)} of {data.num_classes} classes of {data.name} have no training images, the first of them "
            f"{first!r}{hint}",
            stacklevel=3,
        )


def _generated_fields(settings: ClassificationSettings, data: DataSet, batch_size: int) -> dict[str, Any]:
    """What a configuration says of generated images; nothing where there are none."""
    if settings.generated is None:
        if settings.generated_share is not None:
            raise ValueError("generated_share must come with generated, the run folder of a generator; got it alone")
        return {}
    generator = compatible_generator(Path(settings.generated), data, settings)
    return {
        "generated": str(generator.folder),
        "generated_sha256": generator.sha256,
        "generated_per_batch": count_per_batch(settings.generated_share, batch_size),
    }


def _network_options(settings: ClassificationSettings, data: DataSet) -> dict[str, Any]:
    options = options_from_text(settings.network_options)
    return {"in_channels": data.channels} | options | settings.part_of("network_options")


def _augmented(config: ClassificationConfig, data: DataSet) -> Tensor:
    """(C, H, W) the first training image as the network sees it."""
    first = torch.zeros(1, dtype=torch.int64)
    if data.image_size is None and config.augment not in RESIZING and config.seen is None:
        raise ValueError(
            f"augment must be {' or '.join(RESIZING)} for images that are decoded on access and may differ in size, as "
            f"those of {data.name} do, got {config.augment!r}"
        )
    pipeline = training_pipeline(config.augment, config.mean, config.std, config.data, config.seen)
    try:
        return pipeline(images_at(data.x_train, first), Draws.for_samples(first, seed=config.seed, epoch=0))[0]
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"augment={config.augment} is not for the images of {data.name}: {error}") from error
