"""Settings that all tasks share, training recipes, and the learning rate schedule.

The docstring of a setting is its help text on the command line. Scaling a recipe scales all fields counted in epochs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

from isda._utils.choices import check_choice

SCALES = {"paper": 1.0, "small": 1 / 10, "smoke": 1 / 80}
"""The share of the paper's epochs that a scale trains for."""
MAX_EPOCHS = 10**9
"""A run of more would not end, and steps are counted in 64 bits."""

POLY_POWER = 0.9
"""Of the schedule that segmentation networks are trained with since DeepLab (Chen et al., 2017)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimiser, the schedule of its learning rate, and what goes before the first step."""

    epochs: int
    batch_size: int
    """Over all processes together."""
    weight_decay: float
    momentum: float = 0.9
    lr: float = 0.1
    """The initial learning rate."""
    schedule: str = "steps"
    """"steps": multiplied by lr_factor at each milestone; "cosine": lr * (1 + cos(pi t / T)) / 2 at step t of T;
    "poly": lr * (1 - t / T)^0.9."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate falls."""
    lr_factor: float = 0.1
    optimiser: str = "sgd"
    """One of `isda.engine.trainer`."""
    warm_up: float = 0.0
    """Epochs in which the learning rate rises in a line."""
    layer_decay: float = 1.0
    """The classifier has the whole learning rate, each layer below it this share of the one above."""
    first_pass: bool = False
    """See every training image once, before the first step, for ISDA's statistics."""
    average_last: int = 10
    """The reported figures are means over this many last epochs."""
    covariance: str = "full"
    """ISDA's covariance model."""
    lambda_0: float = 0.5
    """ISDA's strength at the end of training."""
    strengths: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)
    """What the paper chooses it from, on CIFAR."""
    label_noise: float = 0.05
    """The share of labels that DisturbLabel draws anew."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")

    def lasting(self, epochs: int) -> Recipe:
        """The same recipe in another number of epochs: milestones, warm-up and averaging window keep their proportion.

        Example:
            >>> short = Recipe(epochs=160, batch_size=128, weight_decay=1e-4, milestones=(80, 120)).lasting(16)
            >>> short.milestones, short.average_last
            ((8, 12), 1)
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        if epochs > MAX_EPOCHS:
            raise ValueError(f"epochs must be at most {MAX_EPOCHS}, got {epochs}")
        factor = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(max(1, round(milestone * factor)) for milestone in self.milestones),
            warm_up=self.warm_up * factor,
            average_last=max(1, min(epochs, round(self.average_last * factor))),
        )

    def scaled(self, scale: str) -> Recipe:
        """The recipe at one of the SCALES."""
        return self.lasting(max(1, round(self.epochs * SCALES[scale])))


def warm_up_steps(asked: str | None, recipe: Recipe, steps_per_epoch: int) -> int:
    """The steps of a warm-up.

    Args:
        asked: epochs, "2" or "0.5", or steps, "100steps"; the recipe's epochs if None.
        recipe: at its length.
        steps_per_epoch: of the run.

    Example:
        >>> recipe = Recipe(epochs=10, batch_size=32, weight_decay=0, warm_up=2)
        >>> [warm_up_steps(asked, recipe, 50) for asked in (None, "0.5", "30steps")]
        [100, 25, 30]
    """
    if asked is None:
        return round(recipe.warm_up * steps_per_epoch)
    found = re.fullmatch(r"(\d{1,9})steps|(\d{1,9}(?:\.\d{1,9})?)", asked.strip())
    if found is None:
        raise ValueError(f"warm_up must be a number of epochs, 2 or 0.5, or of steps, 100steps, got {asked!r}")
    steps = int(found[1]) if found[1] else round(float(found[2]) * steps_per_epoch)
    if steps > recipe.epochs * steps_per_epoch:
        raise ValueError(
            f"warm_up must end within the {recipe.epochs * steps_per_epoch} steps of the run, got {asked!r}"
        )
    return steps


class _Scheduled(Protocol):
    """What of a configuration decides the learning rate."""

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
    def total_steps(self) -> int: ...


def learning_rate(config: _Scheduled, step: int) -> float:
    """The learning rate of step t = 0, 1, ... of T.

    Steps: lr * factor^(number of milestones passed). Cosine: lr (1 + cos(pi t / T)) / 2. Poly: lr (1 - t / T)^0.9.
    In the first W steps of a warm-up it is (t + 1) / W of that.
    """
    risen = 1.0 if step >= config.warm_up_steps else (step + 1) / config.warm_up_steps
    return risen * _scheduled(config, step)


def _scheduled(config: _Scheduled, step: int) -> float:
    """Without a warm-up."""
    if config.schedule == "poly":
        return config.lr * (1 - step / config.total_steps) ** POLY_POWER
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * step / config.total_steps)) / 2
    passed = sum(step >= milestone * config.steps_per_epoch for milestone in config.milestones)
    return config.lr * config.lr_factor**passed


MAX_RATE = 1e30
"""Of learning rates and penalties: optimisers multiply tensors of float32, which end at 3.4e38, by a few times them."""
PRECISIONS = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings that every task has; what is left out comes from the recipe, or is what the help says."""

    data: str | None = None
    """What to learn from."""
    network: str | None = None
    """The network to train."""
    method: str | None = None
    """How; options follow a colon: NAME:key=value,key=value. A name with a dot is a class of your own."""
    seed: int | None = None
    """0 if left out; decides the initial weights, the order of batches and every augmentation."""
    scale: Literal["paper", "small", "smoke"] | None = None
    """Share of the paper's epochs: all (paper, if left out), a tenth (small), an eightieth (smoke); milestones and
    averaging window shrink with it."""
    epochs: int | None = None
    """Number of epochs instead of the scale's."""
    evaluate_every: int | None = None
    """Measure after every so many epochs (each, if left out), and after those that the result averages."""
    batch_size: int | None = None
    """Samples per step, over all processes together."""
    lr: float | None = None
    """Initial learning rate."""
    weight_decay: float | None = None
    """L2 penalty on all parameters."""
    precision: Literal["float32", "float64", "bfloat16", "float16"] | None = None
    """float32 if left out; bfloat16 and float16 are mixed precision (autocast; float16 with loss scaling)."""
    ema: float | None = None
    """Evaluate an exponential moving average of the weights with this decay, e.g. 0.999."""
    channels_last: bool = False
    """Keep images and convolutions channels-last: faster on recent GPUs and on many CPUs."""
    compile: bool = False
    """Run the network through torch.compile."""

    def asked(self) -> dict[str, Any]:
        """What the user has said, without what was left out."""
        left_out = type(self)()
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in said.items() if value != getattr(left_out, name)}

    def shortened(self, recipe: Recipe) -> Recipe:
        """The recipe at the scale, or in the number of epochs, that is asked for."""
        scale = check_choice("scale", self.scale or "paper", SCALES)
        return recipe.scaled(scale) if self.epochs is None else recipe.lasting(self.epochs)

    def resolved(self, recipe: Recipe) -> dict[str, Any]:
        """The fields of a configuration that the settings and a (shortened) recipe decide, checked.

        Raises:
            ValueError: a setting is out of range.
        """
        chosen: dict[str, Any] = {
            "seed": self.seed or 0,
            "scale": (self.scale or "paper") if self.epochs is None else "custom",
            "epochs": recipe.epochs,
            "average_last": recipe.average_last,
            "evaluate_every": 1 if self.evaluate_every is None else self.evaluate_every,
            "batch_size": recipe.batch_size if self.batch_size is None else self.batch_size,
            "lr": recipe.lr if self.lr is None else self.lr,
            "schedule": recipe.schedule,
            "milestones": recipe.milestones,
            "lr_factor": recipe.lr_factor,
            "momentum": recipe.momentum,
            "weight_decay": recipe.weight_decay if self.weight_decay is None else self.weight_decay,
            "precision": check_choice("precision", self.precision or "float32", PRECISIONS),
            "ema": self.ema,
            "channels_last": self.channels_last,
            "compile": self.compile,
            "asked": self.asked(),
        }
        if not 0 <= chosen["seed"] < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {chosen['seed']}")
        if chosen["evaluate_every"] < 1:
            raise ValueError(f"evaluate_every must be at least 1, got {chosen['evaluate_every']}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must lie strictly between 0 and 1, got {self.ema}")
        for name in ("lr", "weight_decay"):
            if not (math.isfinite(chosen[name]) and chosen[name] >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {chosen[name]}")
            if chosen[name] > MAX_RATE:
                raise ValueError(f"{name} must be at most {MAX_RATE:g}, got {chosen[name]}")
        return chosen
