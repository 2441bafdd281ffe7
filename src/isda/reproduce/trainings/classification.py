"""Classifiers at any scale; at the smallest, scikit-learn's digits stand in for photographs that are not there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from isda.classification.recipes import recipe_for
from isda.classification.settings import Settings
from isda.data.archives import data_root
from isda.data.catalogue import CATALOGUE
from isda.data.loading import named_path
from isda.reproduce.scale import Scale
from isda.reproduce.sizes import fitting_width, network_size
from isda.reproduce.training import Shrunk, Training
from isda.reproduce.work import Work, training_work

__all__ = ["ClassifierTraining", "classifier", "classifier_work", "shrunk_classifier"]

STAND_IN = "digits"
SMALL_PHOTOGRAPHS = ("cifar10", "cifar100", "svhn")
"""Data sets that the digits can stand in for."""
TOO_LARGE = {"cnn-13": "fast-cnn"}
"""Networks that do not take images of 8x8 pixels, and what stands in for them."""
OWN_DROPOUT, NARROW_DROPOUT = ("wide-resnet-28-10",), 0.1
"""Networks that have dropout unless told otherwise, and its rate where few of their channels are left."""
IMAGENET, IMAGENET_SIDE = "imagenet", 224


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining(Training):
    """A classifier."""

    task: ClassVar[str] = "classification"
    settings: Settings

    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """Fewer images and epochs, a narrower network, and the digits where the smallest scale finds no data."""
        return shrunk_classifier(self.settings, scale, root)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """That of the network; what ISDA adds is about one percent."""
        return classifier_work(self.at(scale, root).settings)


def classifier(data: str, network: str, method: str, *, tuned: bool | None = None, **said: Any) -> ClassifierTraining:
    """A classifier of the paper; strengths of ISDA are chosen on held-out images unless told otherwise."""
    chosen = "isda" in method and ":" not in method if tuned is None else tuned
    needs = said.pop("needs", {})
    checkpoints = said.pop("checkpoints", 0)
    settings = Settings(data=data, network=network, method=method, **said)
    return ClassifierTraining(settings=settings, tuned=chosen, needs=needs, checkpoints=checkpoints)


def shrunk_classifier(settings: Settings, scale: Scale, root: Path | None) -> Shrunk:
    """What a classifier is at a scale that leaves something out."""
    told = []
    data, network = str(settings.data), str(settings.network)
    if scale.stand_ins and data in SMALL_PHOTOGRAPHS and not _there(data, root):
        told.append(f"{STAND_IN} stands in for {data}, which is not there")
        data = STAND_IN
        if network in TOO_LARGE:
            told.append(f"{TOO_LARGE[network]} stands in for {network}, for which the images are too small")
            network = TOO_LARGE[network]
    side = IMAGENET_SIDE if data == IMAGENET else 8 if data == STAND_IN else 32
    width = fitting_width(network, scale.multiply_adds, side)
    if width < 1:
        told.append(f"network {network} has {width:g} of its channels")
    dropout = settings.dropout
    if width < 1 and network in OWN_DROPOUT and dropout is None:
        dropout = NARROW_DROPOUT
        told.append(f"dropout of {dropout:g} for the narrow network")
    if data == IMAGENET:
        told.append("all images of imagenet are used, each once per epoch")
    smaller = replace(
        settings,
        data=data,
        network=network,
        labels=None if data == IMAGENET else min(scale.images, settings.labels or scale.images),
        epochs=scale.epochs,
        evaluate_every=settings.evaluate_every or scale.epochs,
        batch_size=min(scale.batch_size, recipe_for(network).batch_size),
        width=width if width < 1 else None,
        dropout=dropout,
        augment=None if data == STAND_IN else settings.augment,
    )
    return Shrunk(smaller, tuple(told))


def classifier_work(settings: Any, passes: float = 1.0) -> Work:
    """Of one run of settings that name data and network; passes are forward and backward ones per image and epoch."""
    known = CATALOGUE[settings.data]
    images = settings.labels or known.train
    epochs = settings.epochs or recipe_for(settings.network).epochs
    size = network_size(settings.network, known.size or IMAGENET_SIDE, settings.width or 1.0)
    return training_work(*size, images * epochs * passes)


def _there(data: str, root: Path | None) -> bool:
    place = data_root(root)
    return named_path(data, place) is not None or CATALOGUE[data].locate(place) is not None
