"""What is measured of a classifier, and how tables and pages call it."""

from __future__ import annotations

from collections.abc import Iterable

from isda.engine.folder.figures import Curve, Figure

__all__ = ["BASELINES", "CURVES", "figures_for"]

BASELINES = ("cross-entropy", "supervised")
"""Methods that the others are compared to."""

CURVES = (
    Curve(metric="train/loss", title="Training loss", unit="loss", logarithmic=True),
    Curve(metric="strength", title="Strength λ of ISDA", unit="λ"),
)
"""What pages show beside the error."""


def figures_for(evaluated_on: str, num_classes: int, parts: Iterable[str] = ()) -> tuple[Figure, ...]:
    """The figures of a run, the error first.

    Args:
        evaluated_on: "test" or "held-out".
        num_classes: the top-5 error is measured for more than 5.
        parts: of the classes, see `isda.classification.class_sizes`: the error of each is a figure.
    """

    def measured(name: str, title: str, unit: str = "", digits: int = 2) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=f"{evaluated_on} {title}", unit=unit, digits=digits)

    top = [measured("error_top5", "top-5 error", "%")] if num_classes > 5 else []
    return (
        measured("error", "error", "%"),
        *(measured(f"error_{part}", f"error, {part}", "%") for part in parts),
        *top,
        measured("nll", "negative log-likelihood", digits=3),
        measured("calibration", "calibration error", "%"),
        Figure(name="train_loss", metric="train/loss", title="training loss", digits=4, averaged=False),
    )
