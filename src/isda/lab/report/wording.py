"""Text for numbers and findings, shared by the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from isda.lab.engine.config import Figure
from isda.lab.report.layout import SIGNIFICANCE
from isda.lab.report.statistics import Family, Interval, MeanStd
from isda.lab.report.summary import SUFFIX, Comparison, MethodSummary

SCALES = {
    "paper": "the paper's recipe in full",
    "small": "a shortened recipe, a tenth of the paper's epochs",
    "smoke": "only tests that everything runs, far too short to judge a method",
    "custom": "not the paper's number of epochs",
}
OTHER_SCALES = SCALES | {
    "paper": "the recipe's number of epochs, on data or with a network that the paper does not have",
    "small": "a tenth of the recipe's epochs",
}
"""Elsewhere than in the paper's tables, where there is no number of epochs of the paper."""

_SMALL_IMAGES = (
    *("resnet-32", "resnet-110", "se-resnet-110", "wide-resnet-16-8", "wide-resnet-28-10", "resnext-29-8x64d"),
    *("densenet-bc-100-12", "shake-shake-26-2x32d", "shake-shake-26-2x112d", "cnn-13"),
)
PAPER_NETWORKS = {
    "cifar10": _SMALL_IMAGES,
    "cifar100": _SMALL_IMAGES,
    "svhn": _SMALL_IMAGES,
    "imagenet": (
        *("resnet-50", "resnet-101", "resnet-152", "densenet-121", "densenet-265"),
        *("resnext-50-32x4d", "resnext-101-32x8d"),
    ),
    "cityscapes": ("pspnet-resnet-101", "deeplab-v3-resnet-101"),
    "coco": ("faster-rcnn",),
}
"""The data sets of the paper's tables, and the networks that it trains on each."""


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


def capitalised(text: str) -> str:
    """A title at the beginning of a sentence or a cell; a name such as mIoU is unchanged.

    Example:
        >>> capitalised("test error"), capitalised("mIoU")
        ('Test error', 'mIoU')
    """
    return text[:1].upper() + text[1:] if text.split(" ")[0].islower() else text


def counted(count: int, thing: str) -> str:
    """A count and a noun.

    Example:
        >>> counted(1, "run"), counted(3, "run")
        ('1 run', '3 runs')
    """
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def count_text(method: MethodSummary) -> str:
    """The number of finished seeds, and of paired ones if that is smaller."""
    seeds, paired = len(method.values), len(method.differences)
    return f"{seeds} ({paired} paired)" if 0 < paired < seeds else str(seeds)


def difference_text(difference: Interval | None, digits: int = 2) -> str:
    """A paired difference; empty if there is none."""
    return plus_minus(*difference, digits, sign=True) if difference else ""


def is_error(figure: Figure) -> bool:
    """Whether a figure is an error in percent, beside which an accuracy can stand."""
    return figure.unit == "%" and figure.title.endswith("error")


def accuracy_text(error: MeanStd | None, figure: Figure) -> str:
    """The accuracy that belongs to an error in percent; empty without one."""
    return plus_minus(100 - error.mean, error.std, figure.digits) if error else ""


def in_units(figure: Figure) -> str:
    """The unit of differences, such as ", in percentage points"; empty for a bare number."""
    unit = "percentage points" if figure.unit == "%" else figure.difference_unit
    return f", in {unit}" if unit else ""


class _Scaled(Protocol):
    """A run or a search: what decides whether its scale is named."""

    @property
    def data(self) -> str: ...
    @property
    def network(self) -> str: ...
    @property
    def scale(self) -> str: ...


def is_in_paper(config: _Scaled) -> bool:
    """Whether the paper trains this network on this data set."""
    return config.network in PAPER_NETWORKS.get(config.data, ())


def has_scale(config: _Scaled) -> bool:
    """Whether the scale of a run says something: a number of epochs of one's own does only beside the paper's."""
    return config.scale != "custom" or is_in_paper(config)


def scale_text(config: _Scaled) -> str:
    """The scale and its description, for example "small: a shortened recipe, a tenth of the paper's epochs"."""
    described = SCALES if is_in_paper(config) else OTHER_SCALES
    return f"{config.scale}: {described[config.scale]}" if config.scale in described else config.scale


def scale_note(config: _Scaled, *, described: bool = False) -> str:
    """The scale as a sentence that begins with a space, or nothing: " Scale small."."""
    if not has_scale(config):
        return ""
    return f" Scale {scale_text(config) if described else config.scale}."


def seeds_text(seeds: Sequence[int]) -> str:
    """A readable list of seeds.

    Example:
        >>> seeds_text([0, 1, 2, 3]), seeds_text([7]), seeds_text([1, 4, 5])
        ('seeds 0 to 3', 'seed 7', 'seeds 1, 4, 5')
    """
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else "no seed has finished"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def caption(comparison: Comparison) -> str:
    """The caption of a results table: metric, epochs, seeds, scale and the meaning of ±."""
    figure, config = comparison.figure, comparison.config
    last = config.average_last if figure.averaged else 1
    epochs = f"at epoch {config.epochs}" if last == 1 else f"mean of the last {last} of {config.epochs} epochs"
    over = f"mean ± standard deviation over {seeds_text(comparison.seeds)}"
    unit = "percent" if figure.unit == "%" else figure.unit
    what = f"{figure.title} in {unit}" if unit else figure.title
    words = [f"{capitalised(what)}, {epochs}; {over if len(comparison.seeds) > 1 else seeds_text(comparison.seeds)}."]
    if any(method.difference for method in comparison.methods):
        words.append(
            f"Difference: Δ vs {comparison.baseline.label}{in_units(figure)}, {intervals_text(comparison.intervals)}; "
            f"{'negative' if figure.lower_is_better else 'positive'} is better."
        )
        words += interval_notes(comparison.intervals)
    if comparison.tells_isda_apart:
        words.append("From ISDA: the method − the same one without +isda, simultaneous intervals of their own.")
    if comparison.tells_isda_apart and comparison.isda_overall is not None:
        interval, pairs = comparison.isda_overall
        words.append(
            f"From ISDA over all of these methods: {difference_text(interval, figure.digits)} "
            f"(Student's 95% confidence interval, {pairs} pairs of runs)."
        )
    words += [strength_note(method, comparison) for method in comparison.methods if method.without_strength]
    return " ".join(words) + scale_note(config, described=True)


def strength_note(method: MethodSummary, comparison: Comparison) -> str:
    """The sentence that λ stayed 0 in runs of a method, such as those of lambda_0=auto that found no gap to close."""
    count, runs = len(method.without_strength), len(method.values)
    name, base = method.runs[0].method, comparison.baseline.runs[0]
    plain = name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else base.method if base.is_baseline else "without ISDA"
    effect = ", and their difference is not an effect of ISDA" if count == runs and method.difference else ""
    return f"λ stayed 0 in {count} of {counted(runs, 'run')} of {method.label}: these runs are {plain}{effect}."


def intervals_text(family: Family) -> str:
    """How intervals were made, in one line.

    Example:
        >>> from isda.lab.report.statistics import many_to_one
        >>> intervals_text(many_to_one({"cross-entropy": [3.0, 4.0, 3.5], "a": [2.0, 3.5, 3.0], "b": [2.5, 3.5, 2.0]}))
        'simultaneous 95% confidence intervals (Dunnett, pooled over 3 methods x 3 seeds)'
    """
    layout, level = family.layout, _percent(family.level)
    if len(family) < 2:
        return f"{level} confidence interval ({family.procedure}, {counted(layout.seed_count, 'paired seed')})"
    runs = f", {counted(layout.missing, 'run')} missing" if layout.missing else ""
    pooled = f"pooled over {len(family.pooled.names)} methods x {layout.seed_count} seeds{runs}"
    return f"simultaneous {level} confidence intervals ({family.procedure}, {pooled})"


def interval_notes(family: Family) -> list[str]:
    """Sentences about what to beware of: too few seeds, variances that differ between methods."""
    notes = []
    if family.blind:
        few = (
            "All intervals"
            if len(family.blind) == len(family)
            else f"The intervals of {', '.join(sorted(family.blind))}"
        )
        notes.append(f"{few} are left out: too few seeds (isda compare --plan says how many are needed).")
    for name, ratio in family.separate.items():
        notes.append(
            f"{name} has {ratio:.0f} times the variance of the others: its differences have Student's intervals, not "
            "pooled (Bonferroni)."
        )
    if not family.separate and family.levene is not None and family.levene < SIGNIFICANCE:
        notes.append(
            f"Variances differ between methods (Levene, p = {family.levene:.2g}), less than tenfold: they are pooled."
        )
    return notes


def findings(comparison: Comparison) -> list[str]:
    """One sentence for each compared method; with more than three of them, for the best only."""
    paired = [(method, method.difference) for method in comparison.methods if method.difference is not None]
    if len(paired) > 3:
        lower = comparison.figure.lower_is_better
        best = (min if lower else max)(paired, key=lambda pair: pair[1].mean)
        rank = "lowest" if lower else "highest"
        return [f"Of {len(paired)} methods, {best[0].label} comes out {rank}. {_noted_finding(*best, comparison)}"]
    return [_noted_finding(method, difference, comparison) for method, difference in paired]


def _noted_finding(method: MethodSummary, difference: Interval, comparison: Comparison) -> str:
    note = [strength_note(method, comparison)] if method.without_strength else []
    return " ".join([_finding(method, difference, comparison), *note])


def _finding(method: MethodSummary, difference: Interval, comparison: Comparison) -> str:
    mean, half_width = difference
    base, figure = comparison.baseline.label, comparison.figure
    digits = figure.digits
    what = f"{figure.difference_unit} of {figure.title}" if figure.difference_unit else figure.title
    paired = counted(len(method.differences), "paired seed")
    if half_width is None:
        mean = fmean(method.differences.values()) if method.differences else mean
        return (
            f"On {paired}, {method.label} differs from {base} by {number(mean, digits, sign=True)} {what}; "
            "too few seeds for an interval."
        )
    level = _level_text(comparison.intervals)
    if not difference.excludes_zero:
        return (
            f"{method.label} and {base} cannot be told apart: {difference_text(difference, digits)} {what} "
            f"({level}, {paired})."
        )
    low, high = abs(mean) - half_width, abs(mean) + half_width
    by = f"{number(abs(mean), digits)} {figure.difference_unit}".strip()
    return (
        f"{method.label} has {by} {'lower' if mean < 0 else 'higher'} {figure.title} than {base} "
        f"({level} {number(low, digits)} to {number(high, digits)}, {paired})."
    )


def _level_text(family: Family) -> str:
    return f"{'simultaneous ' if len(family) > 1 else ''}{_percent(family.level)} interval"


def _percent(level: float) -> str:
    return f"{100 * level:.4g}%"
