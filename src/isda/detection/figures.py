"""What is measured of a detector, and how tables and pages call it: COCO's figures, in percent as in the paper."""

from __future__ import annotations

from isda.engine.folder.figures import Curve, Figure

__all__ = ["CURVES", "EVALUATED_ON", "SUMMARY", "figures_for"]

EVALUATED_ON = "validation"

SUMMARY = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_small": "AP small",
    "ap_medium": "AP medium",
    "ap_large": "AP large",
}
"""The first six figures of COCO's summary, in its order."""

CURVES = (Curve(metric="train/loss", title="Training loss", unit="loss", logarithmic=True),)


def figures_for(masks: bool) -> tuple[Figure, ...]:
    """The figures of a run, box AP first; those of masks with the prefix ``mask_``."""
    kinds = [("", "box"), ("mask_", "mask")] if masks else [("", "box")]
    measured = [
        Figure(
            name=prefix + name,
            metric=f"{EVALUATED_ON}/{prefix}{name}",
            title=f"{kind} {title}",
            unit="%",
            digits=1,
            lower_is_better=False,
        )
        for prefix, kind in kinds
        for name, title in SUMMARY.items()
    ]
    loss = Figure(name="train_loss", metric="train/loss", title="training loss", digits=4, averaged=False)
    return (*measured, loss)
