"""Text for numbers, intervals and findings: the same in the terminal, on pages and in JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isda.lab.report.planning import plan_seeds
from isda.lab.report.statistics import Family, Interval

if TYPE_CHECKING:
    from isda.lab.report.comparison import Comparison

SCALES = {
    "paper": "the recipe in full",
    "small": "a tenth of the recipe's epochs",
    "smoke": "only tests that everything runs, far too short to judge a method",
}


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a minus sign (U+2212) instead of a hyphen.

    Example:
        >>> number(-0.5), number(0.5, sign=True)
        ('−0.50', '+0.50')
    """
    return format(value, f"{'+' if sign else ''}.{digits}f").replace("-", "−")


def plus_minus(mean: float, spread: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """The mean, and the spread if there is one.

    Example:
        >>> plus_minus(34.1, 0.256), plus_minus(34.1, None)
        ('34.10 ± 0.26', '34.10')
    """
    text = number(mean, digits, sign=sign)
    return text if spread is None else f"{text} ± {number(spread, digits)}"


def difference_text(difference: Interval | None, digits: int = 2) -> str:
    """A paired difference; empty if there is none."""
    return plus_minus(*difference, digits, sign=True) if difference else ""


def sentence(text: str) -> str:
    """A text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def counted(count: int, thing: str) -> str:
    """A count and a noun, such as "1 run" and "3 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def seeds_text(seeds: Sequence[int]) -> str:
    """A readable list of seeds.

    Example:
        >>> seeds_text([0, 1, 2, 3]), seeds_text([7]), seeds_text([1, 4, 5])
        ('seeds 0 to 3', 'seed 7', 'seeds 1, 4, 5')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    listed = ", ".join(map(str, seeds)) or "none"
    return f"seed {listed}" if len(seeds) < 2 else f"seeds {listed}"


def scale_note(config: Any) -> str:
    """The scale of a run or search as a sentence; empty for a number of epochs of one's own."""
    return f"Scale {config.scale}: {SCALES[config.scale]}." if config.scale in SCALES else ""


def intervals_text(family: Family) -> str:
    """How intervals were made, in one line.

    Example:
        >>> from isda.lab.report.statistics import many_to_one
        >>> intervals_text(many_to_one({"cross-entropy": [3.0, 4.0, 3.5], "a": [2.0, 3.5, 3.0], "b": [2.5, 3.5, 2.0]}))
        'simultaneous 95% confidence intervals (Dunnett, pooled over 3 methods x 3 seeds)'
    """
    layout, level = family.layout, f"{100 * family.level:.4g}%"
    if len(family) < 2:
        return f"{level} confidence interval ({family.procedure}, {counted(layout.seed_count, 'paired seed')})"
    runs = f", {counted(layout.missing, 'run')} missing" if layout.missing else ""
    pooled = f"pooled over {len(family.pooled.names)} methods x {layout.seed_count} seeds{runs}"
    return f"simultaneous {level} confidence intervals ({family.procedure}, {pooled})"


def interval_notes(family: Family) -> list[str]:
    """Sentences about methods whose variance differs from that of the others."""
    return [
        f"{name} has {ratio:.0f} times the variance of the others: its differences have Student's intervals, not "
        "pooled (Bonferroni)."
        for name, ratio in family.separate.items()
    ]


def caption(comparison: Comparison) -> str:
    """The caption of the table of results: figure, epochs, seeds, and the meaning of ±."""
    figure, config, seeds = comparison.figure, comparison.config, comparison.seeds
    last = config.average_last if figure.averaged else 1
    epochs = f"at epoch {config.epochs}" if last == 1 else f"mean of the last {last} of {config.epochs} epochs"
    over = "mean ± standard deviation over " if len(seeds) > 1 else ""
    words = [f"{sentence(figure.title)}, {epochs}; {over}{seeds_text(seeds)}."]
    if comparison.differences:
        better = "negative" if figure.lower_is_better else "positive"
        words.append(
            f"Difference: to {comparison.baseline.label} on the same seeds, {intervals_text(comparison.family())}; "
            f"{better} is better, bold if the interval excludes zero."
        )
        words += interval_notes(comparison.family())
    return " ".join([*words, scale_note(config)]).strip()


def finding(comparison: Comparison, planned: float | None = None) -> str:
    """What a comparison shows, in one sentence: the headline of the terminal, the page and the JSON.

    Where no difference is found, it names the seeds for the ``planned`` one, by default half of what seeds can show.
    """
    figure, differences = comparison.figure, comparison.differences
    if not differences:
        return _without_differences(comparison)
    means = {label: one.mean for label, one in differences.items() if one.excludes_zero}
    if not means and all(one.half_width is None for one in differences.values()):
        label, (mean, _) = next(iter(differences.items()))
        pairs = counted(len(comparison.paired_seeds(label)), "paired seed")
        gap = f"{mean:+.{figure.digits}f} {figure.difference_unit}".strip()
        return f"Too few seeds for an interval: {_spoken(label)} differs by {gap} on {pairs}"
    if not means:
        return _nothing_found(comparison, planned)
    sign = 1 if figure.lower_is_better else -1
    better = [label for label in means if sign * means[label] < 0]
    alike = better or list(means)
    label = max(alike, key=lambda name: abs(means[name]))
    mean, spread = means[label], differences[label].half_width or 0.0
    digits = _digits(spread, figure.digits)
    low, high = (f"{end:.{digits}f}" for end in (mean - spread, mean + spread))
    direction = "lower" if mean < 0 else "higher"
    more = f"; {len(alike)} of {len(differences)} methods are {direction}" if len(alike) > 1 else ""
    return (
        f"{_spoken(label)} has a {direction} {figure.title}: "
        f"{f'{mean:+.{digits}f} {figure.difference_unit}'.strip()} (95% interval {low} to {high}){more}"
    )


def _nothing_found(comparison: Comparison, planned: float | None) -> str:
    figure, family = comparison.figure, comparison.family()
    seeds, unit = family.layout.seed_count, f" {figure.difference_unit}".rstrip()
    least = min(one.half_width for one in comparison.differences.values() if one.half_width is not None)
    shown = f"{least:.{_digits(least, figure.digits)}f}{unit}"
    words = f"No difference found; these {seeds} seeds cannot show less than {shown}"
    smaller = planned or float(f"{least / 2:.0e}")
    plan = plan_seeds(family, smaller) if smaller else None
    if plan is None or plan.seeds_needed is None or plan.seeds_needed <= seeds:
        return words
    return f"{words}, about {plan.seeds_needed:,} would show {smaller:g}"


def _without_differences(comparison: Comparison) -> str:
    figure, measured = comparison.figure, [method.mean(comparison.figure) for method in comparison.methods]
    if len(measured) > 1:
        return "No two methods have finished the same seed"
    if measured[0] is None:
        return "No run has finished yet"
    return f"{_spoken(comparison.baseline.label)} has a {figure.heading.replace(', ', ' in ')} of {measured[0]}"


def _spoken(label: str) -> str:
    return re.sub(r"\bisda\b", "ISDA", label)


def _digits(spread: float, digits: int) -> int:
    """One digit less than in tables, unless the interval is narrow."""
    return digits if spread < 2 * 10.0 ** (1 - digits) else max(0, digits - 1)
