"""From what a user asks to a complete configuration: the network's recipe, the data set, then the user's word."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from isda import __version__, networks
from isda.choices import check_choice
from isda.data import DataSet, load
from isda.networks.registry import IMAGENET, TIMM_PREFIX
from isda.semi import NAMES
from isda.train.config import Config
from isda.train.methods import METHODS, resolve_method, split_method
from isda.train.pipelines import AUGMENTATIONS, default_augmentation
from isda.train.recipes import SCALES, Recipe, recipe_for
from isda.train.semi_method import method_for
from isda.train.semi_options import resolve_semi
from isda.train.settings import Settings
from isda.train.split import split_data

__all__ = ["load_data", "resolve"]

PRECISIONS = ("float32", "float64", "bfloat16", "float16")


def load_data(settings: Settings, data_root: Path | None = None) -> DataSet:
    """The data set that the settings name."""
    return load(settings.data or "digits", data_root)


def resolve(settings: Settings, data: DataSet) -> Config:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set.
    """
    network = settings.network or ("resnet-50" if data.name == "imagenet" else "fast-cnn")
    if not network.startswith(TIMM_PREFIX):
        check_choice("network", network, tuple(networks.names()))
    recipe = _recipe(settings, network)
    method, _ = split_method(settings.method or "isda")
    check_choice("method", method, (*METHODS, *NAMES))
    if method in NAMES:
        of_its_kind = resolve_semi(settings, data, recipe)
    else:
        of_its_kind = _resolve_supervised(settings, data, recipe, large=network in IMAGENET)
    held_out = settings.held_out or 0
    config = Config(
        data=settings.data or "digits",
        network=network,
        seed=settings.seed or 0,
        scale=(settings.scale or "paper") if settings.epochs is None else "custom",
        epochs=recipe.epochs,
        average_last=recipe.average_last,
        evaluate_every=_or(settings.evaluate_every, 1),
        batch_size=_or(settings.batch_size, recipe.batch_size),
        lr=_or(settings.lr, recipe.lr),
        schedule=recipe.schedule,
        milestones=recipe.milestones,
        lr_factor=recipe.lr_factor,
        momentum=recipe.momentum,
        weight_decay=_or(settings.weight_decay, recipe.weight_decay),
        precision=check_choice("precision", settings.precision or "float32", PRECISIONS),
        ema=settings.ema,
        channels_last=settings.channels_last,
        compile=settings.compile,
        labels=settings.labels,
        held_out=held_out,
        evaluated_on="held-out" if held_out else "test",
        classes=data.classes,
        mean=data.mean,
        std=data.std,
        channels=data.channels,
        image_size=data.image_size,
        test_images=held_out or len(data.y_test),
        network_options=_network_options(settings, data),
        asked=settings.asked(),
        version=__version__,
        **of_its_kind,
    )
    _check_numbers(config)
    _check_parts(config, data)
    return config


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _recipe(settings: Settings, network: str) -> Recipe:
    scale = check_choice("scale", settings.scale or "paper", tuple(SCALES))
    recipe = recipe_for(network)
    return recipe.scaled(scale) if settings.epochs is None else recipe.lasting(settings.epochs)


def _resolve_supervised(settings: Settings, data: DataSet, recipe: Recipe, large: bool) -> dict[str, Any]:
    method, method_options = resolve_method(settings.method or "isda", recipe, settings.lambda_0)
    for name in ("unlabelled", "labelled_per_batch"):
        if getattr(settings, name) is not None:
            raise ValueError(f"{name} is for the semi-supervised methods {', '.join(NAMES)}; the method is {method}")
    augment = settings.augment or default_augmentation(data, large)
    return {
        "method": method,
        "method_options": method_options,
        "augment": check_choice("augment", augment, tuple(AUGMENTATIONS)),
        "train_images": _training_images(settings, data),
    }


def _training_images(settings: Settings, data: DataSet) -> int:
    total, held_out = len(data.y_train), settings.held_out or 0
    if not 0 <= held_out < total:
        raise ValueError(f"held_out must be from 0 to {total - 1} for {total} training images, got {held_out}")
    available = total - held_out
    if settings.labels is None:
        return available
    if not 0 < settings.labels <= available:
        raise ValueError(f"labels must be from 1 to {available}, the images not held out, got {settings.labels}")
    return settings.labels


def _network_options(settings: Settings, data: DataSet) -> dict[str, Any]:
    chosen = {"width": settings.width, "dropout": settings.dropout}
    options = {name: value for name, value in chosen.items() if value is not None}
    further = {key: _value(text) for key, text in settings.network_options.items()}
    return {"in_channels": data.channels} | further | options


def _value(text: str) -> Any:
    """A number or truth value where the text is one."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _check_numbers(config: Config) -> None:
    images = config.train_images
    if not 0 < config.batch_size <= images:
        raise ValueError(f"batch_size must be from 1 to {images}, the training images, got {config.batch_size}")
    if not 0 <= config.seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {config.seed}")
    if config.evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {config.evaluate_every}")
    if config.ema is not None and not 0 < config.ema < 1:
        raise ValueError(f"ema must lie strictly between 0 and 1, got {config.ema}")
    for name, value in (("lr", config.lr), ("weight_decay", config.weight_decay)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")


def _check_parts(config: Config, data: DataSet) -> None:
    """Make what can be made without computing: the split, and network and method without memory."""
    try:
        split_data(config, data)
    except ValueError as error:
        raise ValueError(f"labels={config.labels} does not fit {data.name}: {error}") from error
    if config.network.startswith(TIMM_PREFIX):
        # Not every model of timm can be made without memory.
        return
    with torch.device("meta"):
        network = networks.create(config.network, num_classes=len(config.classes), **config.network_options)
        method_for(config, network)
