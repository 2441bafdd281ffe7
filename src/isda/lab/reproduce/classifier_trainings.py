"""Supervised and semi-supervised classifiers and GANs at any scale.

At scale smoke, scikit-learn's digits replace image data sets that are not available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from isda.lab.choices import expect_type
from isda.lab.data.catalogue import CATALOGUE, data_root, named_path
from isda.lab.engine.options import split_method
from isda.lab.engine.settings import AUTO, Recipe
from isda.lab.methods.registry import find_method
from isda.lab.methods.semi import defaults_for
from isda.lab.networks.generative import DiscriminatorBody
from isda.lab.reproduce.training import Scale, ScaledSettings, Training
from isda.lab.reproduce.workload import NetworkSize, Work, count_size, fitting_width, network_size, training_work
from isda.lab.tasks.classification.settings import ClassificationSettings, recipe_for
from isda.lab.tasks.gan.methods import find_method as find_gan_method
from isda.lab.tasks.gan.settings import BATCH_SIZE, GANSettings
from isda.lab.tasks.gan.settings import STEPS as PUBLISHED_STEPS
from isda.lab.tasks.semi_supervised.settings import SemiSettings, tuning_grid

STAND_IN = "digits"
SMALL_PHOTOGRAPHS = ("cifar10", "cifar100", "svhn")
"""Data sets that the digits can replace."""
SMALL_IMAGE_NETWORKS = {"cnn-13": "fast-cnn"}
"""Replacements of networks that do not take images of 8x8 pixels."""
OWN_DROPOUT, NARROW_DROPOUT = ("wide-resnet-28-10",), 0.1
"""Networks with dropout by default, and its rate if they are narrowed."""
IMAGENET, IMAGENET_SIDE = "imagenet", 224
CURVES: dict[str, Sequence[str | None]] = {
    "data": ["cifar100"],
    "network": ["wide-resnet-28-10"],
    "method": ["cross-entropy", "isda"],
    "augment": [None, "autoaugment"],
}
"""Settings of the trainings of Tables 2 and 4 whose errors Figure 5 draws: they are evaluated after every epoch."""
FOLLOWED = {"data": ["cifar10", "cifar100"], "network": ["resnet-110"], "method": ["isda"]}
"""Settings of the trainings of Table 2 whose bounds Figure 9 draws: their first seed keeps CHECKPOINTS."""
CHECKPOINTS = 20


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining(Training):
    """A classifier."""

    task: ClassVar[str] = "classification"
    settings: ClassificationSettings

    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """Fewer images and epochs, a narrower network, and digits if the smallest scale finds no data."""
        return scaled_classifier(self.settings, scale, root)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """That of the network; ISDA adds about one percent."""
        return classifier_work(self.at(scale, root).settings)

    @property
    def checkpoints(self) -> int:
        """Those that Figure 9 needs, whichever table or figure makes the runs."""
        return CHECKPOINTS if _are_among(self.settings, FOLLOWED) and not self.dependencies else 0

    def grid(self) -> Mapping[str, Sequence[Any]]:
        """The strengths of ISDA in the network's recipe."""
        name, _ = split_method(self.method)
        return find_method(name).grid_for(recipe_for(str(self.settings.network), str(self.settings.data)))


def _are_among(settings: ClassificationSettings, values: Mapping[str, Sequence[Any]]) -> bool:
    """Whether settings have one of the listed values each, and no others are given."""
    return settings.given().keys() <= values.keys() and all(getattr(settings, k) in v for k, v in values.items())


def classifier(
    data: str,
    network: str,
    method: str,
    *,
    tuned: bool | None = None,
    dependencies: Mapping[str, Training] | None = None,
    search: tuple[str, ...] = (),
    chosen_from: Training | None = None,
    **further: Any,
) -> ClassifierTraining:
    """A classifier of the paper; strengths of ISDA are chosen on held-out images by default."""
    return ClassifierTraining(
        settings=ClassificationSettings(data=data, network=network, method=method, **further),
        tuned="isda" in method and ":" not in method if tuned is None else tuned,
        dependencies=dependencies or {},
        search=search,
        chosen_from=chosen_from,
    )


def scaled_classifier(settings: ClassificationSettings, scale: Scale, root: Path | None) -> ScaledSettings:
    """The settings of a classifier at a scale below the paper's."""
    differences = []
    data, network = str(settings.data), str(settings.network)
    if scale.stand_ins and data in SMALL_PHOTOGRAPHS and not _available(data, root):
        differences.append(f"{STAND_IN} replace {data}, which is not available")
        data = STAND_IN
        if network in SMALL_IMAGE_NETWORKS:
            smaller = SMALL_IMAGE_NETWORKS[network]
            differences.append(f"{smaller} replaces {network}, for which the images are too small")
            network = smaller
    side = IMAGENET_SIDE if data == IMAGENET else 8 if data == STAND_IN else 32
    width = fitting_width(network, scale.multiply_adds, side)
    if width < 1:
        differences.append(f"network {network} has {width:g} of its channels")
    dropout = settings.dropout
    if width < 1 and network in OWN_DROPOUT and dropout is None:
        dropout = NARROW_DROPOUT
        differences.append(f"dropout of {dropout:g} for the narrow network")
    if data == IMAGENET:
        differences.append("all images of imagenet are used, each once per epoch")
    scaled = replace(
        settings,
        data=data,
        network=network,
        labels=None if data == IMAGENET else min(scale.images, settings.labels or scale.images),
        epochs=scale.epochs,
        evaluate_every=1 if _are_among(settings, CURVES) else scale.epochs,
        batch_size=min(scale.batch_size, recipe_for(network)["batch_size"]),
        width=width if width < 1 else None,
        dropout=dropout,
        augment=AUTO if data == STAND_IN else settings.augment,
    )
    return ScaledSettings(scaled, tuple(differences))


def classifier_work(settings: Any, passes: float = 1.0) -> Work:
    """Of one run with a data set and a network; ``passes`` are forward and backward passes per image and epoch."""
    entry = CATALOGUE[settings.data]
    images = settings.labels or entry.train
    epochs = settings.epochs or recipe_for(settings.network)["epochs"]
    size = network_size(settings.network, entry.size or IMAGENET_SIDE, settings.width or 1.0)
    return training_work(*size, images * epochs * passes, settings.precision)


def _available(data: str, root: Path | None) -> bool:
    folder = data_root(root)
    return named_path(data, folder) is not None or CATALOGUE[data].locate(folder) is not None


SEMI_SUPERVISED_NETWORK = "cnn-13"
PASSES = {"pi-model": 2.0, "temporal-ensembling": 1.0, "mean-teacher": 4 / 3, "vat": 3.0}
"""Forward and backward passes per unlabelled image: two views; one; a student and a forward pass of its teacher; a
clean view, the adversarial direction and the view along it."""
LABELLED_PASSES = PASSES | {"vat": 1.0}
"""Per labelled image; all methods but VAT take them along with the unlabelled ones."""


@dataclass(frozen=True, kw_only=True)
class SemiSupervisedTraining(Training):
    """A semi-supervised classifier."""

    task: ClassVar[str] = "semi-supervised"
    settings: SemiSettings

    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """As classifiers, with at most a fifth of the images labelled."""
        settings, differences = scaled_classifier(self.settings, scale, root)
        labelled = min(self.settings.labels or scale.images, scale.images // 5)
        own = replace(expect_type(settings, SemiSettings), labels=labelled, unlabelled=scale.images - labelled)
        return ScaledSettings(own, differences)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """An epoch is a pass over labelled and unlabelled images, with labelled ones beside them in every step."""
        settings = expect_type(self.at(scale, root).settings, SemiSettings)
        labels = expect_type(settings.labels, int)
        images = CATALOGUE[settings.data].train if settings.unlabelled is AUTO else labels + settings.unlabelled
        size = settings.batch_size or recipe_for(settings.network)["batch_size"]
        name = split_method(self.method)[0].removesuffix("+isda")
        labelled = settings.labelled_beside(size, defaults_for(name, settings.data), labels, images)
        passes = PASSES[name] + LABELLED_PASSES[name] * labelled / size
        return classifier_work(replace(settings, labels=images), passes)

    def grid(self) -> Mapping[str, Sequence[Any]]:
        """The paper's strengths and weights, and those around the publication's eta_2."""
        name, _ = split_method(self.method)
        published = {"eta_2": defaults_for(name.removesuffix("+isda"), self.settings.data).weight}
        return tuning_grid(name, published, recipe_for(self.settings.network))


def semi_supervised(data: str, method: str, labels: int) -> SemiSupervisedTraining:
    """A training of the paper's Table 6.

    Held-out labels choose the weights that the method string leaves open: eta_2 with and without ISDA; with it,
    lambda_0 and eta_1 too.
    """
    settings = SemiSettings(data=data, network=SEMI_SUPERVISED_NETWORK, method=method, labels=labels)
    return SemiSupervisedTraining(settings=settings, tuned=True)


GENERATOR_WIDTHS = {"small": 0.25, "smoke": 0.0625}
GENERATOR_EPOCHS = {"small": 100, "smoke": 2}
PLAYERS = 4
"""Passes of about a discriminator's cost in a step, of both players."""


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining(Training):
    """A generator of images of each class."""

    task: ClassVar[str] = "generation"
    settings: GANSettings

    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """The data of its judge, a narrower network, fewer epochs."""
        judge: Any = scaled_classifier(self.dependencies["judge"].settings, scale, root).settings
        unit = self._networks()
        settings = replace(
            self.settings,
            data=judge.data,
            labels=judge.labels,
            epochs=GENERATOR_EPOCHS[scale.name],
            evaluate_every=GENERATOR_EPOCHS[scale.name],
            batch_size=max(1, scale.batch_size // unit) * unit,
            width=GENERATOR_WIDTHS[scale.name],
        )
        return ScaledSettings(settings, (f"generators have {GENERATOR_WIDTHS[scale.name]:g} of their channels",))

    def work(self, scale: Scale, root: Path | None) -> Work:
        """Of both players."""
        settings: Any = self.at(scale, root).settings
        method = find_gan_method(split_method(self.method)[0])
        turns = method.turns(method.resolve(split_method(self.method)[1], Recipe({})))
        published = PUBLISHED_STEPS * turns * BATCH_SIZE * self._networks()
        samples = published if settings.epochs is None else settings.epochs * settings.labels
        return training_work(*_size(settings.width or 1.0), PLAYERS * samples, settings.precision)

    def _networks(self) -> int:
        """One for each class, or one for all."""
        balanced = find_gan_method(split_method(self.method)[0]).balanced
        return (CATALOGUE[str(self.settings.data)].classes or 1) if balanced else 1


def generator(data: str, method: str) -> GeneratorTraining:
    """A generator of the paper's Table 5, evaluated with the plain ResNet-110 of the same data."""
    judge = classifier(data, "resnet-110", "cross-entropy")
    return GeneratorTraining(settings=GANSettings(data=data, method=method), dependencies={"judge": judge})


@cache
def _size(width: float) -> NetworkSize:
    with torch.device("meta"):
        network = DiscriminatorBody(3, 32, width)
    return count_size(network, 32)
