"""What is measured of a segmentation network, and how tables and pages call it."""

from __future__ import annotations

from isda.engine.folder.figures import Curve, Figure

__all__ = ["BASELINES", "CURVES", "figures_for"]

BASELINES = ("cross-entropy",)
"""Methods that the others are compared to."""

CURVES = (
    Curve(metric="train/loss", title="Training loss", unit="loss", logarithmic=True),
    Curve(metric="strength", title="Strength λ of ISDA", unit="λ"),
)
"""What pages show beside the mIoU."""


def figures_for(evaluated_on: str, multi_scale: bool) -> tuple[Figure, ...]:
    """The figures of a run, the mean intersection over union first.

    Args:
        evaluated_on: "validation" or "test".
        multi_scale: whether it is also measured at several scales, in the end.
    """

    def measured(name: str, title: str) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=f"{evaluated_on} {title}", unit="%", lower_is_better=False)

    further = [measured("miou_multi_scale", "mIoU, multi-scale"), measured("miou_multi_scale_flip", "mIoU, + flip")]
    return (
        measured("miou", "mIoU"),
        *(further if multi_scale else []),
        measured("accuracy", "pixel accuracy"),
        Figure(name="train_loss", metric="train/loss", title="training loss", digits=4, averaged=False),
    )
