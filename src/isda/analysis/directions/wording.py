"""How the atlas is put into words, the same on the page and in the terminal."""

from __future__ import annotations

from isda.analysis.directions.atlas import MOST_CLASSES, Atlas, ClassView, DirectionView
from isda.report.wording import counted, number

__all__ = ["lacking_text", "left_out_text", "notes", "p_text", "percent", "verdict_text", "verdicts_text"]

LEVEL = 0.05


def percent(share: float) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234)
        '12.3%'
    """
    return f"{number(100 * share, 1)}%"


def p_text(p: float) -> str:
    """A p-value.

    Example:
        >>> p_text(0.2), p_text(0.0001)
        ('0.200', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else number(p, 3)


def lacking_text(view: ClassView, asked: int) -> str | None:
    """Why a class has fewer directions than were asked for; None if it has them all."""
    if len(view.directions) == asked:
        return None
    if view.images < 2:
        return f"{counted(view.images, 'image')}: at least 2 are needed for a direction."
    if not view.directions:
        return f"{counted(view.images, 'image')} with the same features: there is no direction."
    return f"{counted(view.images, 'image')} have only {counted(len(view.directions), 'direction')}, not {asked}."


def left_out_text(atlas: Atlas) -> str | None:
    """Which classes are not shown, if nobody asked for these."""
    every = len(atlas.observed.classes)
    if len(atlas.classes) == MOST_CLASSES < every:
        return f"{len(atlas.classes)} of {every} classes are shown; --classes names others."
    return None


def verdict_text(one: DirectionView) -> str:
    """What the judge says of one direction."""
    if one.judged is None or one.corrected_p is None:
        return ""
    return (
        f"For the judge, images at opposite ends are {number(one.judged.ratio)} times as far apart as random pairs of "
        f"the class, and {number(one.judged.shuffled_ratio)} times as far as images at the same end "
        f"({one.judged.images} at each end; corrected p {p_text(one.corrected_p)})."
    )


def verdicts_text(atlas: Atlas) -> str | None:
    """What the judge says of all directions."""
    if not atlas.judged:
        return None
    clear = sum(one.corrected_p is not None and one.corrected_p < LEVEL for one in atlas.judged)
    ratios = [one.judged.ratio for one in atlas.judged if one.judged is not None]
    return (
        f"Another network ({atlas.judge}) tells the two ends of {clear} of {counted(len(ratios), 'direction')} apart "
        f"(Holm's correction, 5%): images at opposite ends are {number(sum(ratios) / len(ratios))} times as far apart "
        f"in its features as random pairs of the class, from {number(min(ratios))} to {number(max(ratios))}."
    )


def notes(atlas: Atlas) -> list[str]:
    """What is to be said beside the table of an atlas."""
    names = atlas.observed.classes
    lacking = [f"{names[view.label]}: {why}" for view in atlas.classes if (why := lacking_text(view, atlas.asked))]
    return [told for told in (verdicts_text(atlas), left_out_text(atlas), *lacking) if told]
