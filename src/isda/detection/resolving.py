"""From what a user asks to a complete configuration: MMDetection's recipe, the data set, then the user's word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isda import __version__
from isda.choices import check_choice
from isda.classification.foreseeing import check_memory, made, said
from isda.data.coco import CocoData
from isda.detection.config import Config
from isda.detection.figures import CURVES, EVALUATED_ON, figures_for
from isda.detection.initialising import Backbone, create_detector, find_backbone
from isda.detection.method import METHODS, DetectionMethod
from isda.detection.recipes import DETECTOR_OPTIONS, RECIPE, warmup_for
from isda.detection.settings import Settings
from isda.engine.grammar import split_method
from isda.engine.named_method import find_named
from isda.engine.recipe import Recipe
from isda.networks.detection import has_masks, names
from isda.networks.registry import TIMM_PREFIX

__all__ = ["resolve"]


def resolve(settings: Settings, data: CocoData) -> Config:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set.
    """
    network = check_choice("network", settings.network or "faster-rcnn", names())
    if has_masks(network) and not (data.train.has_masks and data.validation.has_masks):
        raise ValueError(f"network {network} needs the masks of all objects, {data.name} does not have them")
    if settings.compile:
        raise ValueError("compile must be left out for detectors, whose shapes differ from image to image")
    recipe = settings.shortened(RECIPE)
    name, words = split_method(settings.method or "multi-task")
    method: type[DetectionMethod] = find_named(name, METHODS, DetectionMethod)  # type: ignore[type-abstract]
    options = {key: value for key, value in method.resolve(words, recipe).items() if value is not None}
    backbone = _backbone(settings, options)
    fields = settings.resolved(_for_batch(recipe, settings.batch_size))
    images, size = len(data.train.marked), fields["batch_size"]
    if not 0 < size <= images:
        raise ValueError(f"batch_size must be from 1 to {images}, the training images with objects, got {size}")
    warmup = warmup_for(images // size * fields["epochs"]) if settings.warmup_steps is None else settings.warmup_steps
    if warmup < 0:
        raise ValueError(f"warmup_steps must be at least 0, got {warmup}")
    fields["asked"] |= {"data": data.source}
    config = Config(
        task="detection",
        data=data.name,
        network=network,
        method=name,
        method_options=options,
        steps_per_epoch=images // size,
        evaluated_on=EVALUATED_ON,
        figures=figures_for(has_masks(network)),
        curves=CURVES,
        classes=data.classes,
        category_ids=tuple(data.train.categories),
        backbone=backbone.network,
        backbone_options=backbone.options,
        backbone_weights=backbone.weights,
        backbone_digest=backbone.digest,
        detector_options=_detector_options(settings, backbone),
        mean=backbone.mean,
        std=backbone.std,
        warmup_steps=warmup,
        train_images=images,
        test_images=len(data.validation),
        data_digest=data.digest,
        version=__version__,
        **fields,
    )
    _foresee(config)
    return config


def _for_batch(recipe: Recipe, batch_size: int | None) -> Recipe:
    """The recipe with the learning rate in proportion to the images of a step (Goyal et al., 2017)."""
    return recipe if batch_size is None else replace(recipe, lr=recipe.lr * batch_size / recipe.batch_size)


def _backbone(settings: Settings, options: dict[str, Any]) -> Backbone:
    """The one that the method names, or else the settings."""
    asked = {"backbone": settings.backbone, "backbone_weights": settings.backbone_weights}
    twice = [name for name, value in asked.items() if value is not None and name in options]
    if twice:
        raise ValueError(f"{twice[0]} must be said by the settings or by the method, got it twice")
    weights = options.get("backbone_weights", settings.backbone_weights)
    return find_backbone(options.get("backbone", settings.backbone) or "resnet-50", settings.backbone_options, weights)


def _detector_options(settings: Settings, backbone: Backbone) -> dict[str, Any]:
    """MMDetection's defaults and the user's word; nothing is frozen where weights are random."""
    said_of = {name: getattr(settings, name) for name in DETECTOR_OPTIONS}
    trained = bool(backbone.weights)
    norm = settings.batch_norm or ("frozen" if trained else "trained")
    # Not all of timm's networks run their layers one after the other.
    frozen = int(trained and not backbone.network.startswith(TIMM_PREFIX))
    return (
        DETECTOR_OPTIONS
        | {name: value for name, value in said_of.items() if value is not None}
        | {
            "freeze_batch_norm": check_choice("batch_norm", norm, ("frozen", "trained")) == "frozen",
            "frozen_stages": frozen if settings.frozen_stages is None else settings.frozen_stages,
        }
    )


def _foresee(config: Config) -> None:
    """Raise a ValueError if the network cannot be made or does not fit in memory."""
    if config.backbone.startswith(TIMM_PREFIX):
        # Not every model of timm can be made without memory.
        create_detector(config)
        return
    told = f"network {config.network} on {config.backbone} with {said(config.backbone_options)}"
    check_memory(told, made(lambda: create_detector(config), told), config.dtype)
