"""What a user can ask of any run. The text below each setting is its help on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from isda.choices import check_choice
from isda.engine.recipe import SCALES, Recipe

__all__ = ["RunSettings"]

LARGEST = 1e30
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
            if chosen[name] > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST:g}, got {chosen[name]}")
        return chosen
