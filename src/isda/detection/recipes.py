"""How detectors are trained: MMDetection's 1x schedule, which the paper uses by its "default configuration"."""

from __future__ import annotations

from isda.engine.recipe import Recipe, learning_rate
from isda.engine.trainer import TrainingConfig

__all__ = ["DETECTOR_OPTIONS", "MOST_WARMUP_STEPS", "RECIPE", "warmed_up", "warmup_for"]

RECIPE = Recipe(epochs=12, batch_size=16, weight_decay=1e-4, lr=0.02, milestones=(8, 11), average_last=1)
"""The learning rate is for 16 images per step, and is scaled with the batch."""

MOST_WARMUP_STEPS = 500
WARMUP_FROM = 0.001
"""The share of the learning rate that the first step has."""

DETECTOR_OPTIONS = {
    "min_size": 800,
    "max_size": 1333,
    "fpn_channels": 256,
    "head_dim": 1024,
    "anchor_scale": 8.0,
    "proposals": 1000,
    "box_samples": 512,
}


def warmup_for(total_steps: int) -> int:
    """The steps of warm-up in a run of so many: 500, which is half a percent of 1x on COCO, but at most a tenth.

    Example:
        >>> warmup_for(87_960), warmup_for(600)
        (500, 60)
    """
    return min(MOST_WARMUP_STEPS, total_steps // 10)


def warmed_up(config: TrainingConfig, step: int, warmup_steps: int) -> float:
    """The learning rate of a step: the schedule's, in the first steps rising from a thousandth of it in a line.

    At step t of W: lr (1 - (1 - t / W)(1 - 0.001)).
    """
    rate = learning_rate(config, step)
    return rate if step >= warmup_steps else rate * (1 - (1 - step / warmup_steps) * (1 - WARMUP_FROM))
