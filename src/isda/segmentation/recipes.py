"""How the authors' code trains on Cityscapes; the paper says no more than "the standard hyper-parameters".

All of this is from that code, not from the paper: crops of 769, batches of 8, 40,000 steps at lr 0.01 (1 - t / T)^0.9
with momentum 0.9 (not Nesterov's) and weight decay 5e-4, the auxiliary loss at 0.4, lambda_0 from {1, 2.5, 5, 7.5, 10}
with 7.5 as the default, diagonal covariances (these the paper says too), bilinear upsampling with aligned corners.
"""

from __future__ import annotations

from isda.engine.recipe import Recipe

__all__ = ["AUXILIARY_WEIGHT", "BATCH_SIZE", "CROP", "NETWORK", "SCALE_RANGE", "STEPS", "recipe_for"]

STEPS = 40_000
BATCH_SIZE = 8
CROP = 769
AUXILIARY_WEIGHT = 0.4
NETWORK = "pspnet-resnet-101"
SCALE_RANGE = (0.5, 2.0)
"""Ours, the range that most recipes have; the toolbox below the authors' code draws from 0.7, 0.8, ... 2.1."""


def recipe_for(steps_per_epoch: int) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps.

    Example:
        >>> recipe_for(2975 // 8).epochs
        108
    """
    return Recipe(
        epochs=max(1, round(STEPS / steps_per_epoch)),
        batch_size=BATCH_SIZE,
        weight_decay=5e-4,
        lr=0.01,
        schedule="poly",
        average_last=1,
        covariance="diagonal",
        lambda_0=7.5,
        strengths=(1.0, 2.5, 5.0, 7.5, 10.0),
    )
