"""Settings that all tasks share, training recipes, and the learning rate schedule.

A setting is declared once, as a field of a settings class: it is an option of the command line, its docstring is the
help text, and the configuration of a task, which inherits from its settings, stores it in config.json.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, Protocol, TypeVar

from isda.lab.choices import check_choice

SCALES = {"paper": 1.0, "small": 1 / 10, "smoke": 1 / 80}
"""The share of the paper's epochs that a scale trains for."""
MAX_EPOCHS = 10**9
"""A run of more would not end, and steps are counted in 64 bits."""
MAX_RATE = 1e30
"""Of learning rates and penalties: optimisers multiply tensors of float32, which end at 3.4e38, by a few times them."""

POLY_POWER = 0.9
"""Of the schedule that segmentation networks are trained with since DeepLab (Chen et al., 2017)."""

_T = TypeVar("_T")
_Settings = TypeVar("_Settings", bound="RunSettings")

AUTO: Any = None
"""The value of a setting that is not given: the recipe or the data decides."""

if TYPE_CHECKING:
    # A configuration has no AUTO left: type checkers see the type of the resolved value.
    Auto = Annotated[_T, "AUTO unless given"]
else:
    Auto = Optional


def auto(default: Any = AUTO) -> Any:
    """A setting that is AUTO unless given, and ``default`` if the recipe has no value for it."""
    return field(default=AUTO, metadata={"auto": default})


def stored_in(name: str) -> Any:
    """A setting, None unless given, that a configuration holds as (part of) its field ``name``."""
    return field(default=None, metadata={"stored_in": name})


@dataclass(frozen=True)
class Recipe:
    """Values of settings and of other fields of a configuration, for whatever the user does not give.

    Args:
        values: by field name; "epochs" is one of them. "warm_up" is a number of epochs.
        method_defaults: options of methods by family, see `isda.lab.engine.method.NamedMethod.families`.
        method_grids: options that `isda tune` chooses and the values it tries, by family.
    """

    values: Mapping[str, Any]
    method_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    method_grids: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        epochs, batch_size = self.values.get("epochs", 1), self.values.get("batch_size", 1)
        if epochs < 1 or batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}")

    def __getitem__(self, name: str) -> Any:
        """The value of a field."""
        return self.values[name]

    def __or__(self, values: Mapping[str, Any]) -> Recipe:
        """The recipe with other values."""
        return replace(self, values={**self.values, **values})

    def lasting(self, epochs: int) -> Recipe:
        """The same recipe in another number of epochs: milestones, warm-up and averaging window keep their proportion.

        Example:
            >>> short = Recipe({"epochs": 160, "milestones": (80, 120), "average_last": 10}).lasting(16)
            >>> short["milestones"], short["average_last"]
            ((8, 12), 1)
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        if epochs > MAX_EPOCHS:
            raise ValueError(f"epochs must be at most {MAX_EPOCHS}, got {epochs}")
        factor = epochs / self["epochs"]
        changes: dict[str, Any] = {"epochs": epochs}
        if "milestones" in self.values:
            changes["milestones"] = tuple(max(1, round(milestone * factor)) for milestone in self["milestones"])
        if "warm_up" in self.values:
            changes["warm_up"] = self["warm_up"] * factor
        if "average_last" in self.values:
            changes["average_last"] = max(1, min(epochs, round(self["average_last"] * factor)))
        return self | changes

    def scaled(self, scale: str) -> Recipe:
        """The recipe at one of the SCALES."""
        return self.lasting(max(1, round(self["epochs"] * SCALES[scale])))


def warm_up_steps(warm_up: str | None, recipe: Recipe, steps_per_epoch: int) -> int:
    """The steps of a warm-up.

    Args:
        warm_up: epochs, "2" or "0.5", or steps, "100steps"; the recipe's epochs if None.
        recipe: at its length.
        steps_per_epoch: of the run.

    Example:
        >>> recipe = Recipe({"epochs": 10, "warm_up": 2})
        >>> [warm_up_steps(warm_up, recipe, 50) for warm_up in (None, "0.5", "30steps")]
        [100, 25, 30]
    """
    if warm_up is None:
        return round(recipe.values.get("warm_up", 0) * steps_per_epoch)
    match = re.fullmatch(r"(\d{1,9})steps|(\d{1,9}(?:\.\d{1,9})?)", warm_up.strip())
    if match is None:
        raise ValueError(f"warm_up must be a number of epochs, 2 or 0.5, or of steps, 100steps, got {warm_up!r}")
    steps = int(match[1]) if match[1] else round(float(match[2]) * steps_per_epoch)
    if steps > recipe["epochs"] * steps_per_epoch:
        raise ValueError(
            f"warm_up must end within the {recipe['epochs'] * steps_per_epoch} steps of the run, got {warm_up!r}"
        )
    return steps


def fit_batch_size(size: int, images: int, given: bool, what: str = "training images") -> int:
    """The images of a step: the recipe's number or all there are, with a warning; a number of the user's is checked.

    Args:
        size: of the user, or of the recipe.
        images: that there are.
        given: whether ``size`` is of the user.
        what: the images are.

    Raises:
        ValueError: the user's number does not lie in 1..images.
    """
    if not given and 0 < images < size:
        warnings.warn(f"batch_size is {images}, all {what}; the recipe's {size} are more than there are", stacklevel=2)
        return images
    if not 0 < size <= images:
        raise ValueError(f"batch_size must be from 1 to {images}, the {what}, got {size}")
    return size


class _Scheduled(Protocol):
    """The fields of a configuration that decide the learning rate."""

    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def milestones(self) -> tuple[int, ...]: ...
    @property
    def lr_factor(self) -> float: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def warm_up_steps(self) -> int: ...
    @property
    def warm_up_from(self) -> float | None: ...
    @property
    def total_steps(self) -> int: ...


def learning_rate(config: _Scheduled, step: int) -> float:
    """The learning rate of step t = 0, 1, ... of T.

    Steps: lr * factor^(number of milestones passed). Cosine: lr (1 + cos(pi t / T)) / 2. Poly: lr (1 - t / T)^0.9.
    In the first W steps of a warm-up it is (t + 1) / W of that; with warm_up_from = r, 1 - (1 - t / W)(1 - r) of that.
    """
    if config.schedule == "poly":
        rate = config.lr * (1 - step / config.total_steps) ** POLY_POWER
    elif config.schedule == "cosine":
        rate = config.lr * (1 + math.cos(math.pi * step / config.total_steps)) / 2
    else:
        passed = sum(step >= milestone * config.steps_per_epoch for milestone in config.milestones)
        rate = config.lr * config.lr_factor**passed
    if step >= config.warm_up_steps:
        return rate
    if config.warm_up_from is None:
        return rate * ((step + 1) / config.warm_up_steps)
    return rate * (1 - (1 - step / config.warm_up_steps) * (1 - config.warm_up_from))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings that every task has; what is not given comes from the recipe, or is what the help says."""

    data: Auto[str] = auto()
    """What to learn from."""
    network: Auto[str] = auto()
    """The network to train."""
    method: Auto[str] = auto()
    """How; options follow a colon: NAME:key=value,key=value. A name with a dot is a class of your own."""
    seed: Auto[int] = auto(0)
    """Decides the initial weights, the order of batches and every augmentation."""
    scale: Auto[Literal["paper", "small", "smoke"]] = auto("paper")
    """Share of the paper's epochs: all (paper), a tenth (small), an eightieth (smoke); milestones and averaging window
    shrink with it."""
    epochs: Auto[int] = auto()
    """Number of epochs; by default the scale's."""
    evaluate_every: Auto[int] = auto(1)
    """Measure after every so many epochs, and after those that the result averages."""

    method_summaries: ClassVar[Mapping[str, str]] = {}
    """The methods of the task and one line on each, for help and error messages without torch."""

    def given(self) -> dict[str, Any]:
        """The settings that the user has given: those that differ from their defaults."""
        defaults = type(self)()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(defaults, name)}

    def part_of(self, name: str) -> dict[str, Any]:
        """The given settings that a configuration holds in its field ``name``; numbers must be finite."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("stored_in") == name}
        given = {key: value for key, value in values.items() if value is not None}
        for key, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key} must be a finite number, got {value}")
        return given

    def shortened(self, recipe: Recipe) -> Recipe:
        """The recipe at the given scale, or in the given number of epochs."""
        scale = check_choice("scale", "paper" if self.scale is AUTO else self.scale, SCALES)
        return recipe.scaled(scale) if self.epochs is AUTO else recipe.lasting(self.epochs)

    def filled(self: _Settings, recipe: Recipe) -> _Settings:
        """The settings with what a (shortened) recipe has for those that are AUTO, checked.

        Raises:
            ValueError: a setting is out of range.
        """
        open_fields = [f for f in fields(self) if "auto" in f.metadata and getattr(self, f.name) is AUTO]
        values = {f.name: recipe.values.get(f.name, f.metadata["auto"]) for f in open_fields}
        if self.epochs is not AUTO:
            values["scale"] = "custom"
        settings = replace(self, **values)
        settings.check()
        return settings

    def resolved(self, recipe: Recipe) -> dict[str, Any]:
        """The fields of a configuration that the settings and a (shortened) recipe decide, checked.

        Raises:
            ValueError: a setting is out of range.
        """
        settings = self.filled(recipe)
        values = dict(recipe.values) | {f.name: getattr(settings, f.name) for f in fields(self)}
        elsewhere = {f.name for f in fields(self) if "stored_in" in f.metadata}
        return {name: value for name, value in values.items() if name not in elsewhere} | {"settings": self.given()}

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range; called when settings are resolved."""
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        if self.evaluate_every < 1:
            raise ValueError(f"evaluate_every must be at least 1, got {self.evaluate_every}")


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings(RunSettings):
    """Settings of runs that train networks by gradients."""

    batch_size: Auto[int] = auto()
    """Samples per step, over all processes together; the recipe's by default."""
    lr: Auto[float] = auto()
    """Initial learning rate; the recipe's by default."""
    weight_decay: Auto[float] = auto(0.0)
    """L2 penalty on all parameters; the recipe's by default."""
    precision: Auto[Literal["float32", "float64", "bfloat16", "float16"]] = auto("float32")
    """bfloat16 (or bf16) and float16 are mixed precision (autocast; float16 with loss scaling)."""
    ema: float | None = None
    """Evaluate an exponential moving average of the weights with this decay, e.g. 0.999."""

    precisions: ClassVar[tuple[str, ...]] = ("float32", "float64", "bfloat16", "float16")

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        super().check()
        check_choice("precision", self.precision, self.precisions)
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must lie strictly between 0 and 1, got {self.ema}")
        for name, value in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")
            if value > MAX_RATE:
                raise ValueError(f"{name} must be at most {MAX_RATE:g}, got {value}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(OptimiserSettings):
    """Settings of runs of one network and one optimiser; see `isda.lab.engine.Trainer`."""

    nesterov: Auto[bool] = auto(True)
    """Whether the momentum of sgd is Nesterov's."""
    warm_up: str | None = stored_in("warm_up_steps")
    """Let the learning rate rise linearly over so many epochs, 2 or 0.5, or steps: 100steps."""
    schedule: Auto[Literal["steps", "cosine", "poly"]] = auto("steps")
    """How the learning rate falls; the recipe's by default. steps: multiplied by lr_factor at each milestone; cosine:
    lr (1 + cos(pi t / T)) / 2 at step t of T; poly: lr (1 - t / T)^0.9."""
    accumulate: Auto[int] = auto(1)
    """Add up the gradients of so many steps for each one of the optimiser: a batch that much larger in the same
    memory."""
    clip: float | None = None
    """Scale gradients whose norm is larger than this down to it."""
    deterministic: Auto[bool] = auto(True)
    """Accelerators use deterministic algorithms: slower, and the same bits in every run."""
    channels_last: bool = False
    """Keep images and convolutions channels-last: faster on recent GPUs and on many CPUs."""
    compile: bool = False
    """Run the network through torch.compile."""

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        super().check()
        check_choice("schedule", self.schedule, ("steps", "cosine", "poly"))
        if self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {self.accumulate}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be a finite number above 0, got {self.clip}")


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, and how many are kept."""

    minutes: float = 5.0
    """Save when this much time has passed since the last checkpoint."""
    steps: int | None = None
    """Save every so many steps as well."""
    keep: int = 2

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes between checkpoints must be more than 0, got {self.minutes}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps between checkpoints must be at least 1, got {self.steps}")
