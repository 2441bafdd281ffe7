"""What is measured of a generator, and how tables and pages call it."""

from __future__ import annotations

from isda.engine.folder.figures import Curve, Figure

__all__ = ["curves_for", "figures_for"]


def figures_for(evaluated_on: str) -> tuple[Figure, ...]:
    """The figures of a run, the Fréchet distance first.

    Args:
        evaluated_on: "test" or "held-out": the real images that generated ones are compared to.
    """

    def measured(name: str, title: str, unit: str = "", digits: int = 2, *, lower: bool = True) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=title, unit=unit, digits=digits, lower_is_better=lower)

    return (
        measured("fid", "FID on the judge's features"),
        measured("kid", "KID on the judge's features", digits=4),
        measured("diversity", "diversity within classes, of real images'", lower=False),
        measured("accuracy", "intended label seen by the judge", "%", lower=False),
    )


def curves_for(evaluated_on: str) -> tuple[Curve, ...]:
    """What pages show beside the Fréchet distance."""
    return (
        Curve(metric=f"{evaluated_on}/accuracy", title="Intended label seen by the judge", unit="%"),
        Curve(metric=f"{evaluated_on}/diversity", title="Diversity within classes, of real images'"),
        Curve(metric="train/generator", title="Loss of the generator", unit="loss"),
        Curve(metric="train/discriminator", title="Loss of the discriminator", unit="loss"),
    )
