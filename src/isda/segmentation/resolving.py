"""From what a user asks to a complete configuration: the authors' recipe, the data set, then the user's word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from isda import __version__
from isda.choices import check_choice
from isda.data.segmentation import IGNORED, SegmentationData
from isda.engine.grammar import split_method
from isda.networks import segmentation as networks
from isda.segmentation.config import Config
from isda.segmentation.figures import BASELINES, CURVES, figures_for
from isda.segmentation.foreseeing import foresee
from isda.segmentation.methods import find_method
from isda.segmentation.recipes import AUXILIARY_WEIGHT, BATCH_SIZE, CROP, NETWORK, SCALE_RANGE, recipe_for
from isda.segmentation.settings import Settings

__all__ = ["check_counted", "crop_size", "judging_part", "resolve"]


def resolve(settings: Settings, data: SegmentationData) -> Config:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting that does not exist, is out of range, or does not fit the data set; or a file of the data
            set that is wrong.
    """
    images = len(data.train)
    size = BATCH_SIZE if settings.batch_size is None else settings.batch_size
    if not 0 < size <= images:
        raise ValueError(f"batch_size must be from 1 to {images}, the training images, got {size}")
    recipe = settings.shortened(recipe_for(images // size))
    name, words = split_method(settings.method or "isda")
    method = find_method(name)
    judging = judging_part(data, settings.evaluate_on)
    data.check(("train", judging))
    for part in ("train", judging):
        check_counted(data, part)
    chosen = settings.resolved(recipe)
    if "data" in chosen["asked"] and Path(str(settings.data)).expanduser().is_dir():
        # A relative path is found again from wherever the run is taken up.
        chosen["asked"] |= {"data": data.source}
    statistics = data.statistics
    config = Config(
        task="segmentation",
        data=data.name,
        data_digest=data.digest,
        network=check_choice("network", settings.network or NETWORK, networks.names()),
        network_options=_network_options(settings),
        method=name,
        method_options=method.resolve(words, recipe, settings.lambda_0),
        steps_per_epoch=images // size,
        evaluated_on=judging,
        figures=figures_for(judging, settings.multi_scale),
        curves=CURVES,
        baselines=BASELINES,
        classes=data.classes,
        colours=data.colours,
        mean=statistics.mean,
        std=statistics.std,
        crop=crop_size(str(CROP) if settings.crop is None else settings.crop),
        **_scales(settings),
        mirror=settings.mirror,
        auxiliary_weight=_auxiliary_weight(settings),
        freeze_batch_norm=settings.freeze_batch_norm,
        sync_batch_norm=settings.sync_batch_norm,
        multi_scale=settings.multi_scale,
        pretrained=settings.pretrained or "",
        train_images=images,
        test_images=len(data.part(judging)),
        version=__version__,
        **chosen,
    )
    foresee(config, method)
    return config


def crop_size(text: str, name: str = "crop") -> tuple[int, int]:
    """Height and width from SIDE or HEIGHTxWIDTH; messages call them ``name``.

    Example:
        >>> crop_size("769"), crop_size("180x240")
        ((769, 769), (180, 240))
    """
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    size = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if min(size) < 1:
        raise ValueError(f"{name} must be a number of pixels, SIDE or HEIGHTxWIDTH, got {text!r}")
    return size


def judging_part(data: SegmentationData, asked: str | None) -> str:
    """The part that judges: the one asked for, else validation, else test; it must have labels."""
    if asked is None:
        asked = "validation" if data.validation.labelled else "test"
    part = data.part(check_choice("evaluate_on", asked, ("validation", "test")))
    if not part.labelled:
        told = "no labels" if part.pairs else "no images"
        raise ValueError(f"evaluate_on must name a part with labels, got {asked}, of which {data.name} has {told}")
    return asked


def check_counted(data: SegmentationData, name: str) -> None:
    """Raise a ValueError if a part with labels has no pixel of any class; most often one image is looked at."""
    part = data.part(name)
    if not any(bool((part[index][1] != IGNORED).any()) for index in range(len(part))):
        raise ValueError(
            f"the {name} part of {data.name} must have pixels of at least one class, got {len(part)} images with "
            "ignored labels only"
        )


def _scales(settings: Settings) -> dict[str, Any]:
    smallest = SCALE_RANGE[0] if settings.smallest_scale is None else settings.smallest_scale
    largest = SCALE_RANGE[1] if settings.largest_scale is None else settings.largest_scale
    if not 0.01 <= smallest <= largest <= 100:
        told = f"got {smallest} and {largest}"
        raise ValueError(f"smallest_scale and largest_scale must be in order, from 0.01 to 100, {told}")
    return {"smallest_scale": smallest, "largest_scale": largest}


def _auxiliary_weight(settings: Settings) -> float:
    weight = AUXILIARY_WEIGHT if settings.auxiliary_weight is None else settings.auxiliary_weight
    if not 0 <= weight <= 100:
        raise ValueError(f"auxiliary_weight must lie in 0..100, got {weight}")
    return weight


def _network_options(settings: Settings) -> dict[str, Any]:
    chosen = {
        "width": settings.width,
        "output_stride": settings.output_stride,
        "stem": settings.stem or ("torchvision" if settings.pretrained == "torchvision" else None),
        "dropout": settings.dropout,
    }
    options = {name: value for name, value in chosen.items() if value is not None}
    return options | {"auxiliary": _auxiliary_weight(settings) > 0}
