"""Classes by how many training images they have: head, middle and tail of a long-tailed run.

The borders are those of ImageNet-LT (Liu et al., CVPR 2019: many, medium and few shots): more than 100, 20 to 100,
fewer than 20.
"""

from __future__ import annotations

from collections.abc import Sequence

from isda.classification.config import Config

__all__ = ["class_parts", "counts_for", "measured_parts"]

HEAD_ABOVE, TAIL_BELOW = 100, 20


def class_parts(counts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The classes of each part that has any.

    Example:
        >>> class_parts([500, 100, 20, 19, 0])
        {'head': (0,), 'middle': (1, 2), 'tail': (3, 4)}
    """
    parts: dict[str, tuple[int, ...]] = {"head": (), "middle": (), "tail": ()}
    for index, count in enumerate(counts):
        name = "head" if count > HEAD_ABOVE else "tail" if count < TAIL_BELOW else "middle"
        parts[name] += (index,)
    return {name: classes for name, classes in parts.items() if classes}


def measured_parts(config: Config) -> dict[str, tuple[int, ...]]:
    """The parts whose errors are measured: those of a run with an imbalance that was asked for."""
    return {} if config.imbalance is None else class_parts(config.class_counts)


def counts_for(config: Config, num_classes: int) -> list[int]:
    """Training images of each class, at least one, for losses that depend on them; all alike where that was drawn."""
    return [max(1, count) for count in config.class_counts or [1] * num_classes]
