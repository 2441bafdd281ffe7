"""How numbers and findings are put into words, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from isda.report.method_summary import LEVEL, MethodSummary
from isda.report.statistics import Interval
from isda.report.summary import Comparison

__all__ = [
    "caption",
    "count_text",
    "difference_text",
    "findings",
    "number",
    "plus_minus",
    "scale_text",
    "seeds_text",
    "subject",
]

SCALES = {
    "paper": "the paper's recipe in full",
    "small": "a shortened recipe, a tenth of the paper's epochs",
    "smoke": "only a trial of the machinery, far too short to judge a method",
    "custom": "not the paper's number of epochs",
}


def number(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a true minus sign, which is as wide as the plus sign.

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


def count_text(method: MethodSummary) -> str:
    """How many seeds a method has finished, and how many of them are paired where that is fewer."""
    seeds, paired = len(method.errors), len(method.differences)
    return f"{seeds} ({paired} paired)" if 0 < paired < seeds else str(seeds)


def difference_text(difference: Interval | None) -> str:
    """A paired difference; empty where there is nothing to pair."""
    return plus_minus(difference.mean, difference.half_width, sign=True) if difference else ""


def scale_text(scale: str) -> str:
    """The scale and what it means, for example "small: a shortened recipe, a tenth of the paper's epochs"."""
    return f"{scale}: {SCALES[scale]}" if scale in SCALES else scale


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as a person would write them.

    Example:
        >>> seeds_text([0, 1, 2, 3]), seeds_text([7]), seeds_text([1, 4, 5])
        ('seeds 0 to 3', 'seed 7', 'seeds 1, 4, 5')
    """
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else "no seed has finished"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def subject(comparison: Comparison) -> str:
    """What is measured: test error, or held-out error where training images were held out."""
    return f"{comparison.evaluated_on} error"


def caption(comparison: Comparison) -> str:
    """What a reader must know to read the table: data, epochs, seeds, scale and what each ± means."""
    last = comparison.average_last
    epochs = f"at epoch {comparison.epochs}" if last == 1 else f"mean of the last {last} of {comparison.epochs} epochs"
    over = f"mean ± standard deviation over {seeds_text(comparison.seeds)}"
    words = [
        f"{subject(comparison).capitalize()} in percent, {epochs}; "
        f"{over if len(comparison.seeds) > 1 else seeds_text(comparison.seeds)}."
    ]
    if any(method.difference for method in comparison.methods):
        words.append(
            f"Difference: method − {comparison.baseline.label} on the same seeds, in percentage points, "
            f"mean ± half of Student's {LEVEL:.0%} interval; negative is better."
        )
    if comparison.tells_isda_apart:
        words.append("From ISDA: likewise, the method − the same one without +isda.")
    if sum(method.difference is not None for method in comparison.methods) > 1:
        words.append("The intervals are not corrected for the number of methods.")
    words.append(f"Scale {scale_text(comparison.scale)}.")
    return " ".join(words)


def findings(comparison: Comparison) -> list[str]:
    """One sentence for each method that can be compared; with more than three of them, for the lowest error only."""
    paired = [(method, method.difference) for method in comparison.methods if method.difference is not None]
    if len(paired) > 3:
        lowest = min(paired, key=lambda pair: pair[1].mean)
        return [f"Of {len(paired)} methods, {lowest[0].label} comes out lowest. {_finding(*lowest, comparison)}"]
    return [_finding(method, difference, comparison) for method, difference in paired]


def _finding(method: MethodSummary, difference: Interval, comparison: Comparison) -> str:
    mean, half_width = difference
    base, what = comparison.baseline.label, subject(comparison)
    if half_width is None:
        return (
            f"On one seed, {method.label} differs from {base} by {number(mean, sign=True)} points of {what}; "
            "an interval needs at least 2 seeds."
        )
    paired = f"{len(method.differences)} paired seeds"
    if not difference.excludes_zero:
        return (
            f"{method.label} and {base} cannot be told apart: {plus_minus(mean, half_width, sign=True)} points "
            f"of {what} ({LEVEL:.0%} interval, {paired})."
        )
    low, high = abs(mean) - half_width, abs(mean) + half_width
    return (
        f"{method.label} has {number(abs(mean))} points {'lower' if mean < 0 else 'higher'} {what} than {base} "
        f"({LEVEL:.0%} interval {number(low)} to {number(high)}, {paired})."
    )
