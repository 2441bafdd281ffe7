"""Which covariance to take where nobody has said: the full one while it is small, a low-rank one beyond."""

from __future__ import annotations

import logging

from isda import distributed
from isda.covariance.memory import full_bytes, low_rank_bytes

__all__ = ["AUTO", "LARGEST_FULL_BYTES", "choose", "say_choice"]

AUTO = "auto"
LARGEST_FULL_BYTES = 2**30
"""The state up to which "auto" is "full", at 4 bytes a number."""

_said: set[tuple[int, int]] = set()


def choose(num_classes: int, feature_dim: int) -> str:
    """The name of the model: "full" up to 1 GiB of state, else "low_rank".

    Shapes alone decide, at 4 bytes a number whatever the dtype, so that every machine and every process agrees and a
    stored state fits wherever training goes on.

    Example:
        >>> choose(100, 640), choose(1000, 2048)
        ('full', 'low_rank')
    """
    return "full" if full_bytes(num_classes, feature_dim) <= LARGEST_FULL_BYTES else "low_rank"


def say_choice(num_classes: int, feature_dim: int, rank: int) -> None:
    """Say once for each shape, in the log and in one process, that the covariance is not the full one."""
    shape = (num_classes, feature_dim)
    if shape in _said or distributed.rank() != 0:
        return
    _said.add(shape)
    full, low = (size / 2**30 for size in (full_bytes(*shape), low_rank_bytes(*shape, rank)))
    logging.getLogger("isda").warning(
        "covariance='auto' is 'low_rank' (rank=%d, %.2f GiB) for %d classes x %d features: 'full' takes %.1f GiB",
        rank,
        low,
        num_classes,
        feature_dim,
        full,
    )
