"""Settings, stored configuration and method options of semi-supervised runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from isda.lab.choices import check_choice
from isda.lab.engine.options import option_types, parse_options, split_method
from isda.lab.engine.settings import AUTO, Auto, Recipe, auto
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings

if TYPE_CHECKING:
    from isda.lab.methods.options import ISDAOptions
    from isda.lab.methods.semi.defaults import MethodSettings


_METHODS = {
    "supervised": "labelled images alone, the baseline",
    "pi-model": "two augmented views agree (Pi-model)",
    "temporal-ensembling": "predictions agree with their average over epochs",
    "mean-teacher": "predictions agree with those of averaged weights",
    "vat": "predictions are stable in the worst direction (virtual adversarial training)",
}
METHOD_SUMMARIES = {
    **_METHODS,
    **{f"{name}+isda": f"{name} with ISDA's bounds on labelled and unlabelled images" for name in _METHODS},
}
"""By name; the methods themselves are in `isda.lab.methods.semi`."""

PUBLISHED = "published"
"""The word for batches composed as in the method's publication."""


@dataclass(frozen=True, kw_only=True)
class SemiSettings(ClassificationSettings):
    """Settings of a semi-supervised run; what is not given comes from the method's publication and the recipe."""

    method: Auto[str] = auto()
    """supervised (the baseline), pi-model, temporal-ensembling, mean-teacher or vat, each also with +isda;
    options follow a colon: mean-teacher+isda:eta_1=1,bound=tilted."""
    labels: int | None = None
    """How many images keep their label, equally many of each class, drawn with the seed."""
    unlabelled: Auto[int] = auto()
    """Use this many further images without labels, drawn with the seed. An epoch is one pass over labelled and
    unlabelled images together."""
    labelled_per_batch: Auto[int | Literal["published"]] = auto()
    """Labelled images in each step, which come on top of batch_size unlabelled ones; as in Verma et al. (2019), whom
    the paper follows, if not given. published: in the proportion of the method's publication."""
    held_out_labels: Auto[float] = auto(0.0)
    """Hold out this share of the labelled images (0.25 in the paper) and evaluate on them instead of the test set, to
    choose settings with; leaving it out puts them back."""
    batch_size: Auto[int] = auto()
    """Unlabelled images per step, over all processes together."""
    augment: Auto[str] = auto()
    """none, translate or translate-flip."""

    method_summaries: ClassVar[Mapping[str, str]] = METHOD_SUMMARIES

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        super().check()
        if not 0 <= self.held_out_labels < 1:
            raise ValueError(f"held_out_labels must be a share from 0 to below 1, got {self.held_out_labels}")

    def labelled_beside(self, unlabelled: int, defaults: MethodSettings, labels: int, samples: int) -> int:
        """The labelled images in a step of this many unlabelled ones.

        Args:
            unlabelled: batch_size.
            defaults: of the method's publication.
            labels: number of labelled images.
            samples: number of all images, labelled or not.

        Example:
            >>> from isda.lab.methods.semi import defaults_for
            >>> settings = (SemiSettings(), SemiSettings(labelled_per_batch="published"))
            >>> [s.labelled_beside(128, defaults_for("mean-teacher", "cifar10"), 4000, 50_000) for s in settings]
            [128, 10]
        """
        if self.labelled_per_batch == PUBLISHED:
            return defaults.labelled_beside(unlabelled, labels, samples)
        if self.labelled_per_batch is AUTO:
            return min(unlabelled, labels)
        if not isinstance(self.labelled_per_batch, int) or not 0 < self.labelled_per_batch <= labels:
            raise ValueError(
                f"labelled_per_batch must be from 1 to labels={labels}, or {PUBLISHED}, got {self.labelled_per_batch}"
            )
        return self.labelled_per_batch


@dataclass(frozen=True, kw_only=True)
class SemiConfig(SemiSettings, ClassificationConfig):
    """A classification run that also sees images without labels; batch_size counts those."""

    labels: int = field()
    """Images with labels, those held out included."""
    labelled_per_batch: int = field()
    normalisation: str
    """"channel", "per-image" or "zca"."""

    of_method: ClassVar[tuple[str, ...]] = ("labelled_per_batch",)

    @property
    def samples_per_step(self) -> int:
        """The labelled ones."""
        return self.labelled_per_batch

    @property
    def images_text(self) -> str:
        """What it learns from, in words."""
        held = f", {self.test_images} of them held out" if self.held_out_labels else ""
        return f"{self.labels} labelled{held} and {self.unlabelled} unlabelled images"


CONSISTENCY_WEIGHTS = (0.5, 1.0, 2.0)
"""What the paper chooses eta_1 from."""
REGULARISER_FACTORS = (0.5, 1.0, 2.0)
"""Ours: what eta_2 is tried at, times the weight that the method's publication has."""


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Of every semi-supervised method; see isda.lab.methods.semi.SemiSupervised."""

    passes: str = "joint"
    mean_over: str = "labelled"
    input_noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RegulariserOptions:
    """Of every method with a regulariser."""

    eta_2: float = 1.0
    """The regulariser's weight in the paper's overall objective."""
    ramp_up: float = 0.0
    """Share of training over which it grows."""


@dataclass(frozen=True, kw_only=True)
class ConsistencyOptions:
    """Of every method with +isda, beside ISDA's own."""

    eta_1: float = 1.0
    """The consistency bound's weight in the paper's overall objective."""


def declared_options(name: str) -> list[type]:
    """The dataclasses that declare the options of a method."""
    from isda.lab.methods.options import ISDAOptions
    from isda.lab.methods.semi.methods import ISDA_SUFFIX, NAMES, REGULARISERS

    check_choice("method", name, NAMES)
    method = name.removesuffix(ISDA_SUFFIX)
    declared: list[type] = [SharedOptions]
    if name.endswith(ISDA_SUFFIX):
        declared += [ISDAOptions, ConsistencyOptions]
    if method in REGULARISERS:
        declared += [RegulariserOptions, REGULARISERS[method].Options]
    return declared


def tuning_grid(name: str, options: dict[str, Any], recipe: Recipe) -> dict[str, tuple[float, ...]]:
    """The options that `isda tune` searches by default, and their values.

    Args:
        name: of the method.
        options: all of them, from `resolve_options`.
        recipe: gives the strengths of ISDA.

    Example:
        >>> from isda.lab.tasks.classification.settings import recipe_for
        >>> tuning_grid("vat+isda", {"eta_1": 1.0, "eta_2": 1.0}, recipe_for("cnn-13"))["eta_2"]
        (0.5, 1.0, 2.0)
    """
    from isda.lab.methods.semi.methods import ISDA_SUFFIX, SUPERVISED

    tried: dict[str, tuple[float, ...]] = {}
    if name.endswith(ISDA_SUFFIX):
        tried |= recipe.method_grids["isda"]
        if not name.startswith(SUPERVISED):
            tried["eta_1"] = CONSISTENCY_WEIGHTS
    if options.get("eta_2"):
        tried["eta_2"] = tuple(factor * options["eta_2"] for factor in REGULARISER_FACTORS)
    return tried


def resolve_options(
    text: str,
    defaults: MethodSettings,
    labels: int,
    samples: int,
    recipe: Recipe,
    shortcuts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All options of a method written as ``name`` or ``name:key=value,key=value``.

    Args:
        text: as a user writes it.
        defaults: of the method's publication.
        labels: number of labelled images.
        samples: number of all images, labelled or not.
        recipe: gives ISDA's options that are not set elsewhere.
        shortcuts: settings that set an option of ISDA, where the text does not.

    Example:
        >>> from isda.lab.tasks.classification.settings import recipe_for
        >>> from isda.lab.methods.semi import defaults_for
        >>> defaults = defaults_for("vat", "cifar10")
        >>> options = resolve_options("vat+isda:eta_1=2,memory=30", defaults, 4000, 50_000, recipe_for("cnn-13"))
        >>> options["eta_1"], options["eta_2"], options["epsilon"], options["memory"]
        (2.0, 1.0, 8.0, 30)
    """
    from isda.lab.methods.semi.methods import ISDA_SUFFIX, REGULARISERS, SUPERVISED

    name, words = split_method(text)
    declared = declared_options(name)
    method = name.removesuffix(ISDA_SUFFIX)
    options: dict[str, Any] = {}
    if name.endswith(ISDA_SUFFIX):
        options |= {**recipe.method_defaults["isda"], **(shortcuts or {})}
        options["eta_1"] = 0.0 if method == SUPERVISED else 1.0
    if method in REGULARISERS:
        options["ramp_up"] = defaults.ramp_up
    options |= {"passes": defaults.passes, "mean_over": "labelled", "input_noise": defaults.input_noise}
    options |= defaults.options
    if "epsilon" in options:
        # Whatever the normalisation, images have unit variance here.
        options["epsilon"] /= defaults.image_deviation
    given = parse_options(name, words, *declared)
    if "teacher_decay" in given:
        # One number is meant for the whole run.
        given.setdefault("ramp_up_teacher_decay", given["teacher_decay"])
    options |= given
    if method in REGULARISERS:
        options.setdefault("eta_2", defaults.weight_for(labels, samples, 0, options["mean_over"]).final)
    for weight in ("eta_1", "eta_2"):
        if not 0 <= options.get(weight, 0) < math.inf:
            raise ValueError(f"{weight} must be a finite number >= 0, got {options[weight]}")
    if not 0 <= options.get("ramp_up", 0) <= 1:
        raise ValueError(f"ramp_up must lie in 0..1, a share of training, got {options['ramp_up']}")
    return options


def isda_options(options: dict[str, Any]) -> tuple[ISDAOptions, dict[str, Any]]:
    """ISDA's own options of a method, and the others."""
    from isda.lab.methods.options import ISDAOptions

    own = {name: value for name, value in options.items() if name in option_types(ISDAOptions)}
    return ISDAOptions(**own), {name: value for name, value in options.items() if name not in own}
