"""From what a user asks of a semi-supervised run to its configuration: the publication's, then the user's word."""

from __future__ import annotations

from torch import Tensor

from isda.classification.foreseeing import foresee
from isda.classification.pipelines import default_augmentation
from isda.classification.resolving import check_held_out, choose_network, image_fields
from isda.data import DataSet
from isda.engine.grammar import split_method
from isda.engine.recipe import warm_up_steps
from isda.semi import defaults_for, inputs_for
from isda.semi.methods import ISDA_SUFFIX, REGULARISERS
from isda.semi_supervised.config import SemiConfig
from isda.semi_supervised.method import create_method
from isda.semi_supervised.options import resolve_options
from isda.semi_supervised.settings import Settings
from isda.semi_supervised.split import split_data
from isda.semi_supervised.views import WEAK

__all__ = ["resolve"]

# With fewer images than this per pixel (and channel) ZCA fits their noise, and blows up that of the test images.
IMAGES_PER_PIXEL = 10


def resolve(settings: Settings, data: DataSet) -> SemiConfig:
    """Fill in everything that the settings leave open, and check all of it before anything is trained.

    Raises:
        ValueError: a setting is missing, out of range or not for semi-supervised methods.
    """
    text = settings.method or "supervised"
    name, _ = split_method(text)
    method = name.removesuffix(ISDA_SUFFIX)
    if not isinstance(data.x_train, Tensor):
        raise ValueError(f"method {name} needs images of one size in memory, {data.name} is decoded on access")
    if settings.ema is not None and method == "mean-teacher":
        raise ValueError(
            f"ema is not for method {name}, whose teacher is an average already; its option is teacher_decay"
        )
    if settings.generated is not None or settings.generated_share is not None:
        raise ValueError(f"generated must be left out for method {name}, got it: it is for supervised methods")
    if settings.pretrained is not None:
        raise ValueError(f"pretrained must be left out for method {name}, got it: it is for supervised methods")
    if settings.imbalance is not None:
        raise ValueError(f"imbalance must be left out for method {name}, got it: it is for supervised methods")
    network, recipe = choose_network(settings, data)
    labels, unlabelled, held = _images(settings, name, len(data.y_train))
    samples = labels - held + unlabelled
    defaults, inputs = defaults_for(method, data.name), inputs_for(data.name)
    fields = image_fields(settings, data, network, recipe, held)
    size, per_batch = fields["batch_size"], settings.labelled_per_batch
    if not 0 < size <= samples:
        raise ValueError(f"batch_size must be from 1 to {samples}, the training images, got {size}")
    if per_batch is None:
        per_batch = defaults.labelled_beside(size, labels - held, samples)
    if not 0 < per_batch <= labels - held:
        raise ValueError(f"labelled_per_batch must be from 1 to labels={labels - held}, got {per_batch}")
    augment = settings.augment or _augmentation(data, inputs.flip)
    if augment not in WEAK:
        raise ValueError(f"augment must be one of {', '.join(WEAK)} for method {name}, got {augment!r}")
    few = len(data.x_train) < IMAGES_PER_PIXEL * data.x_train[0].numel()
    config = SemiConfig(
        task="semi-supervised",
        method=name,
        method_options=resolve_options(text, defaults, labels - held, samples, recipe, settings.lambda_0),
        augment=augment,
        normalisation="channel" if inputs.normalisation == "zca" and few else inputs.normalisation,
        unlabelled=unlabelled,
        labelled_per_batch=per_batch,
        held_out_labels=settings.held_out_labels or 0.0,
        train_images=samples,
        steps_per_epoch=samples // size,
        warm_up_steps=warm_up_steps(settings.warm_up, recipe, samples // size),
        **fields,
    )
    try:
        split_data(config, data)
    except ValueError as error:
        raise ValueError(f"labels={config.labels} does not fit {data.name}: {error}") from error
    options = config.method_options
    # Where labelled images go through the network alone, batch normalisation has only them.
    joint = options["passes"] == "joint" and (method in REGULARISERS or options.get("eta_1", 0) > 0)
    foresee(config, lambda made: create_method(config, made), data.x_train[0], per_batch + size * joint)
    return config


def _augmentation(data: DataSet, flip: bool) -> str:
    if default_augmentation(data, large=False) == "none":
        return "none"
    return "translate-flip" if flip else "translate"


def _images(settings: Settings, name: str, total: int) -> tuple[int, int, int]:
    """How many images have labels, how many are used without, and how many of the labelled ones are held out."""
    if settings.labels is None:
        raise ValueError(f"labels must say how many images keep their label for method {name}, got none")
    left = check_held_out(settings.held_out, total)
    if not 0 < settings.labels < left:
        raise ValueError(
            f"labels must be from 1 to {left - 1} for method {name}, fewer than the {left} images not held "
            f"out, got {settings.labels}"
        )
    share = settings.held_out_labels or 0.0
    if not 0 <= share < 1:
        raise ValueError(f"held_out_labels must be a share from 0 to below 1, got {share}")
    if share and settings.held_out:
        raise ValueError("held_out and held_out_labels must not be given together: a run is judged by one of them")
    held = round(settings.labels * share)
    if share and not 0 < held < settings.labels:
        raise ValueError(f"held_out_labels must hold out some of labels={settings.labels} and not all, got {share}")
    rest = left - settings.labels
    unlabelled = rest if settings.unlabelled is None else settings.unlabelled
    if not 0 < unlabelled <= rest:
        raise ValueError(f"unlabelled must be from 1 to {rest}, the images left without a label, got {unlabelled}")
    return settings.labels, unlabelled, held
