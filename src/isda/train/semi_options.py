"""From what a user asks of a semi-supervised run to its settings: the publication's, then the user's word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from isda.choices import check_choice
from isda.data import DataSet
from isda.semi import NAMES, defaults_for, inputs_for
from isda.semi.by_name import ISDA_SUFFIX
from isda.semi.defaults import MethodSettings
from isda.train.methods import parse_options, split_method
from isda.train.pipelines import default_augmentation
from isda.train.recipes import Recipe
from isda.train.settings import Settings
from isda.train.views import WEAK

__all__ = ["resolve_semi", "resolve_semi_method"]

# With fewer images than this per pixel (and channel) ZCA fits their noise, and blows up that of the test images.
IMAGES_PER_PIXEL = 10


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_FOR_ALL: dict[str, Callable[[str], Any]] = {"passes": str, "mean_over": str, "input_noise": float}
_FOR_ISDA: dict[str, Callable[[str], Any]] = {"lambda_0": float, "covariance": str, "bound": str, "eta_1": float}
_FOR_REGULARISERS: dict[str, Callable[[str], Any]] = {"eta_2": float, "ramp_up": float}
_OWN: dict[str, dict[str, Callable[[str], Any]]] = {
    "supervised": {},
    "pi-model": {},
    "temporal-ensembling": {"alpha": float},
    "mean-teacher": {"decay": float, "ramp_up_decay": float, "distance": str},
    "vat": {"epsilon": float, "xi": float, "power_iterations": int, "entropy_minimisation": _truth},
    "fixmatch": {"threshold": float},
}


def resolve_semi(settings: Settings, data: DataSet, recipe: Recipe) -> dict[str, Any]:
    """The fields of a configuration that are of their own kind in semi-supervised runs.

    Args:
        settings: whose method is one of isda.semi.NAMES.
        data: the data set.
        recipe: of the network; its batch size is the number of unlabelled images per step.

    Raises:
        ValueError: a setting is missing, out of range or not for semi-supervised methods.
    """
    text = settings.method or ""
    name, _ = split_method(text)
    method = name.removesuffix(ISDA_SUFFIX)
    if not isinstance(data.x_train, Tensor):
        raise ValueError(f"method {name} needs images of one size in memory, {data.name} is decoded on access")
    if settings.ema is not None and method == "mean-teacher":
        raise ValueError(f"ema is not for method {name}, whose teacher is an average already; its option is decay")
    labels, unlabelled = _images(settings, name, len(data.y_train))
    samples, defaults, inputs = labels + unlabelled, defaults_for(method, data.name), inputs_for(data.name)
    batch_size = recipe.batch_size if settings.batch_size is None else settings.batch_size
    labelled_per_batch = settings.labelled_per_batch
    if labelled_per_batch is None:
        labelled_per_batch = defaults.labelled_beside(batch_size, labels, samples)
    if not 0 < labelled_per_batch <= labels:
        raise ValueError(f"labelled_per_batch must be from 1 to labels={labels}, got {labelled_per_batch}")
    augment = settings.augment or _augmentation(data, inputs.flip)
    if augment not in WEAK:
        raise ValueError(f"augment must be one of {', '.join(WEAK)} for method {name}, got {augment!r}")
    few = len(data.x_train) < IMAGES_PER_PIXEL * data.x_train[0].numel()
    return {
        "method": name,
        "method_options": resolve_semi_method(text, defaults, labels, samples, recipe, settings.lambda_0),
        "augment": augment,
        "normalisation": "channel" if inputs.normalisation == "zca" and few else inputs.normalisation,
        "unlabelled": unlabelled,
        "labelled_per_batch": labelled_per_batch,
        "train_images": samples,
    }


def resolve_semi_method(
    text: str, defaults: MethodSettings, labels: int, samples: int, recipe: Recipe, lambda_0: float | None = None
) -> dict[str, Any]:
    """All options of a method written as ``name`` or ``name:key=value,key=value``.

    eta_1 and eta_2 are the weights of the paper's overall objective, ramp_up the share of training over which eta_2
    grows; the others are the arguments of `isda.semi.create`.

    Args:
        text: as a user writes it.
        defaults: of the method's publication.
        labels: number of labelled images.
        samples: number of all images, labelled or not.
        recipe: gives lambda_0 and the covariance where nobody else does.
        lambda_0: ISDA's strength where the text does not say.

    Example:
        >>> from isda.train.recipes import recipe_for
        >>> defaults = defaults_for("vat", "cifar10")
        >>> options = resolve_semi_method("vat+isda:eta_1=2", defaults, 4000, 50_000, recipe_for("cnn-13"))
        >>> options["eta_1"], options["eta_2"], options["epsilon"]
        (2.0, 1.0, 8.0)
    """
    name, words = split_method(text)
    check_choice("method", name, NAMES)
    method, with_isda = name.removesuffix(ISDA_SUFFIX), name.endswith(ISDA_SUFFIX)
    known, options = dict[str, Callable[[str], Any]](), dict[str, Any]()
    if with_isda:
        known |= _FOR_ISDA
        strength = recipe.lambda_0 if lambda_0 is None else lambda_0
        options |= {"lambda_0": strength, "covariance": recipe.covariance, "bound": "jensen"}
        options["eta_1"] = 0.0 if method == "supervised" else 1.0
    if method != "supervised":
        known |= _FOR_REGULARISERS
        options["ramp_up"] = defaults.ramp_up
    options |= {"passes": defaults.passes, "mean_over": "labelled", "input_noise": defaults.input_noise}
    options |= defaults.options
    if "epsilon" in options:
        # Whatever the normalisation, images have unit variance here.
        options["epsilon"] /= defaults.image_deviation
    given = parse_options(name, words, known | _FOR_ALL | _OWN[method])
    if "decay" in given:
        # One number is meant for the whole run.
        given.setdefault("ramp_up_decay", given["decay"])
    options |= given
    if method != "supervised":
        options.setdefault("eta_2", defaults.weight_for(labels, samples, 0, options["mean_over"]).final)
    for weight in ("eta_1", "eta_2"):
        if not 0 <= options.get(weight, 0) < math.inf:
            raise ValueError(f"{weight} must be a finite number >= 0, got {options[weight]}")
    if not 0 <= options.get("ramp_up", 0) <= 1:
        raise ValueError(f"ramp_up must lie in 0..1, a share of training, got {options['ramp_up']}")
    return options


def _augmentation(data: DataSet, flip: bool) -> str:
    if default_augmentation(data, large=False) == "none":
        return "none"
    return "translate-flip" if flip else "translate"


def _images(settings: Settings, name: str, total: int) -> tuple[int, int]:
    """How many images have labels, and how many are used without."""
    held_out = settings.held_out or 0
    if settings.labels is None:
        raise ValueError(f"labels must say how many images keep their label for method {name}, got none")
    if not 0 <= held_out < total:
        raise ValueError(f"held_out must be from 0 to {total - 1} for {total} training images, got {held_out}")
    available = total - held_out
    if not 0 < settings.labels < available:
        raise ValueError(
            f"labels must be from 1 to {available - 1} for method {name}, fewer than the {available} images not held "
            f"out, got {settings.labels}"
        )
    rest = available - settings.labels
    unlabelled = rest if settings.unlabelled is None else settings.unlabelled
    if not 0 < unlabelled <= rest:
        raise ValueError(f"unlabelled must be from 1 to {rest}, the images left without a label, got {unlabelled}")
    return settings.labels, unlabelled
