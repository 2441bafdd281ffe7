"""How the publications train their networks; the paper says which methods, the noise and the share, and no more.

WGAN (Arjovsky et al., 2017): RMSprop at 5e-5, batches of 64, five steps of the critic for one of the generator. With
gradient penalty (Gulrajani et al., 2017): Adam at 1e-4 with betas 0 and 0.9. The others as DCGAN (Radford et al.,
2016): Adam at 2e-4 with betas 0.5 and 0.999. How long, 40,000 steps, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from isda.engine.recipe import Recipe

__all__ = ["BATCH_SIZE", "CLIPPED", "DCGAN", "EVALUATIONS", "PENALISED", "Optimiser", "recipe_for"]

STEPS = 40_000
BATCH_SIZE = 64
EVALUATIONS = 20


@dataclass(frozen=True)
class Optimiser:
    """What both players are trained with."""

    name: str
    lr: float
    betas: tuple[float, ...] = ()


DCGAN = Optimiser("adam", 2e-4, (0.5, 0.999))
CLIPPED = Optimiser("rmsprop", 5e-5)
PENALISED = Optimiser("adam", 1e-4, (0.0, 0.9))


def recipe_for(optimiser: Optimiser, steps_per_epoch: int) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps.

    Example:
        >>> recipe_for(DCGAN, 50_000 // 64).epochs
        51
    """
    return Recipe(
        epochs=max(1, round(STEPS / steps_per_epoch)),
        batch_size=BATCH_SIZE,
        weight_decay=0.0,
        lr=optimiser.lr,
        average_last=1,
    )
