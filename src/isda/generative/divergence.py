"""Signs that training goes astray, in a sentence each. A loss that is no number ends a run; these only warn."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["complaints"]

COLLAPSED = 0.25
"""Of the diversity of real images."""
SATURATED = 99.5
"""Percent of images that the discriminator tells apart."""


def complaints(metrics: Mapping[str, float], evaluated_on: str) -> dict[str, str]:
    """What is wrong after an epoch, by the name of the problem.

    Args:
        metrics: of the epoch.
        evaluated_on: what precedes the names of figures.

    Example:
        >>> complaints({"epoch": 7, "test/diversity": 0.1}, "test")["collapse"]
        'the generator has collapsed: after epoch 7 its images of a class differ by 0.10 of what real ones do'
    """
    found, epoch = {}, metrics["epoch"]
    for name, classes in (("diversity", "a class"), ("least_diversity", "one class at least")):
        diversity = metrics.get(f"{evaluated_on}/{name}")
        if diversity is not None and diversity < COLLAPSED:
            found["collapse"] = (
                f"the generator has collapsed: after epoch {epoch} its images of {classes} differ by {diversity:.2f} "
                "of what real ones do"
            )
            break
    told_apart = metrics.get("train/told_apart")
    if told_apart is not None and told_apart > SATURATED:
        found["saturation"] = (
            f"the discriminator tells {told_apart:.1f}% of real and generated images apart in epoch {epoch}: the "
            "generator learns little from it"
        )
    return found
