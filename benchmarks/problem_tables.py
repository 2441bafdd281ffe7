"""The page of benchmarks/problems.py, from its record: results/problems.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from scipy.stats import wilcoxon

from csv_files import read_csv
from isda.lab.report.statistics import LEVEL, Family, Interval, many_to_one, paired_cells, t_interval
from isda.lab.report.wording import number, plus_minus
from pooling import Effect, friedman, mean_ranks, pooled_effect, signs
from problem_methods import CONTROLS, OURS, RIVALS
from problem_sets import PROBLEMS

__all__ = ["family", "names", "page", "pooled", "read"]

Figures = dict[str, dict[str, dict[int, float]]]
"""One figure by problem, method and draw."""

DIRECTION = {"error": 1, "log_likelihood": -1, "calibration": 1, "seconds": 1}
"""Times this, smaller is better."""
TITLES = {
    "error": "Error, %",
    "log_likelihood": "Log-likelihood per row",
    "calibration": "Calibration error, %",
    "seconds": "Seconds of one processor, settings chosen",
}
DIGITS = {"error": 2, "log_likelihood": 3, "calibration": 1, "seconds": 2}
COMPARED = ("error", "log_likelihood")
METHODS = (OURS, *RIVALS)
_CONTROLLED = """`ISDAClassifier(lambda_0=0)` chooses C and a scale in the same way: logistic regression, scaled. LDA
gets such a factor on its logits by the same folds."""


def read(path: Path) -> dict[str, Figures]:
    """Figures by name, of the draws that every method has made."""
    tables: dict[str, Figures] = {name: {} for name in DIRECTION}
    for row in read_csv(path):
        for name, figures in tables.items():
            own = figures.setdefault(row["problem"], {}).setdefault(row["method"], {})
            own[int(row["draw"])] = float(row[name])
    for figures in tables.values():
        for methods in figures.values():
            common = set.intersection(*(set(methods.get(method, {})) for method in (*METHODS, *CONTROLS)))
            for draws in methods.values():
                for draw in set(draws) - common:
                    del draws[draw]
    return tables


def names(figures: Figures) -> list[str]:
    """The problems that every method has made at least twice."""
    return [problem.name for problem in PROBLEMS if len(figures.get(problem.name, {}).get(OURS, {})) > 1]


def told(figures: Figures, problem: str) -> str:
    """Its name, with the number of draws where others have more."""
    count = len(figures[problem][OURS])
    most = max(len(figures[other][OURS]) for other in names(figures))
    return problem if count == most else f"{problem} ({count} draws)"


def mean(figures: Figures, problem: str, method: str) -> float:
    """Over draws."""
    return statistics.fmean(figures[problem][method].values())


def means(figures: Figures, method: str, sign: int = 1) -> list[float]:
    """Of one method, one for each problem; times -1 where larger is better."""
    return [sign * mean(figures, problem, method) for problem in names(figures)]


def family(figures: Figures, problem: str) -> Family:
    """Rivals - ours on one problem, at a level such that the intervals of all problems hold simultaneously."""
    cells = paired_cells({method: figures[problem][method] for method in METHODS})
    return many_to_one(cells, OURS, 1 - (1 - LEVEL) / len(names(figures)))


def difference(found: Family, rival: str) -> Interval:
    """Ours - a rival's."""
    interval = found.get(rival)
    assert interval is not None
    return Interval(-interval.mean, interval.half_width)


def main_table(figures: Figures, name: str) -> Iterator[str]:
    """A row per problem, a column per method, the best in bold; at the end mean ranks."""
    sign, digits = DIRECTION[name], DIGITS[name]
    yield f"| problem | {' | '.join(METHODS)} |"
    yield "|---|" + "---|" * len(METHODS)
    for problem in names(figures):
        values = {method: mean(figures, problem, method) for method in METHODS}
        best = min(sign * value for value in values.values())
        cells = [
            f"**{number(value, digits)}**" if sign * value == best else number(value, digits)
            for value in values.values()
        ]
        yield f"| {told(figures, problem)} | {' | '.join(cells)} |"
    ranks = mean_ranks({method: means(figures, method, sign) for method in METHODS})
    yield f"| *mean rank* | {' | '.join(f'*{ranks[method]:.2f}*' for method in METHODS)} |"


def against_all(tables: Mapping[str, Figures]) -> Iterator[str]:
    """Ours against each rival: problems won and lost, the sign test, and intervals that exclude zero."""
    yield "| figure | against | better on | worse on | sign test, p | interval better on | interval worse on |"
    yield "|---|---|---|---|---|---|---|"
    for name in COMPARED:
        figures, sign = tables[name], DIRECTION[name]
        families = [family(figures, problem) for problem in names(figures)]
        for rival in RIVALS:
            count = signs(means(figures, OURS, sign), means(figures, rival, sign))
            found = [difference(own, rival) for own in families]
            clear = [sign * interval.mean for interval in found if interval.excludes_zero]
            cells = [
                count.smaller,
                count.larger,
                f"{count.p:.3g}",
                sum(c < 0 for c in clear),
                sum(c > 0 for c in clear),
            ]
            yield f"| {TITLES[name].split(',')[0].lower()} | {rival} | {' | '.join(map(str, cells))} |"


def pooled(families: Sequence[Family], rival: str, level: float) -> Effect:
    """Ours - a rival's over all problems: random effects."""
    gaps, errors = [-own[rival].mean for own in families], [own.errors[rival] for own in families]
    return pooled_effect(gaps, errors, level)


def over_all(tables: Mapping[str, Figures]) -> Iterator[str]:
    """The differences of all problems pooled, and the tests of mean ranks."""
    level = 1 - (1 - LEVEL) / len(RIVALS)
    yield f"| figure | {OURS} − | pooled difference | τ | I² | Q, p | rank to {OURS}, p |"
    yield "|---|---|---|---|---|---|---|"
    for name in COMPARED:
        figures, sign = tables[name], DIRECTION[name]
        families = [family(figures, problem) for problem in names(figures)]
        ranking = friedman({method: means(figures, method, sign) for method in METHODS}, OURS)
        for rival in RIVALS:
            effect = pooled(families, rival, level)
            cells = [
                plus_minus(*effect.interval, DIGITS[name], sign=True),
                number(effect.between, DIGITS[name]),
                f"{100 * effect.heterogeneity:.0f}%",
                f"{effect.p_heterogeneity:.2g}",
                f"{ranking.p_control[rival]:.2g}",
            ]
            yield f"| {TITLES[name].split(',')[0].lower()} | {rival} | {' | '.join(cells)} |"


def ranks_sentence(tables: Mapping[str, Figures]) -> str:
    """Friedman's test and Nemenyi's critical difference of each figure."""
    words = []
    for name in COMPARED:
        ranking = friedman({method: means(tables[name], method, DIRECTION[name]) for method in METHODS}, OURS)
        words.append(
            f"{TITLES[name].split(',')[0].lower()}: Friedman p = {ranking.p:.2g}, Nemenyi's critical difference of "
            f"mean ranks {ranking.critical_difference:.2f}"
        )
    return f"""Random-effects meta-analysis of the paired differences (DerSimonian and Laird; Hartung and Knapp's
interval), simultaneous 95% confidence intervals (Bonferroni, {len(RIVALS)} rivals); τ is the standard deviation of true
differences between problems, I² their share of the variance, with the p-value of Cochran's Q. Ranks to {OURS}: Holm.
{"; ".join(words)} (95%, all pairs)."""


def differences(tables: Mapping[str, Figures], name: str) -> Iterator[str]:
    """Ours - each rival's on each problem."""
    figures, digits = tables[name], DIGITS[name]
    yield f"| problem | {' | '.join(RIVALS)} |"
    yield "|---|" + "---|" * len(RIVALS)
    for problem in names(figures):
        own = family(figures, problem)
        signed = {rival: plus_minus(*difference(own, rival), digits, sign=True) for rival in RIVALS}
        cells = [f"{text}{'°' if own.separate.keys() & {rival, OURS} else ''}" for rival, text in signed.items()]
        yield f"| {told(figures, problem)} | {' | '.join(cells)} |"


def against_controls(tables: Mapping[str, Figures]) -> Iterator[str]:
    """Ours against what has a scale too, but no augmentation."""
    yield f"| figure | against | mean of {OURS} − it | better on | worse on | sign test, p | Wilcoxon, p of worse |"
    yield "|---|---|---|---|---|---|---|"
    for control in CONTROLS:
        for name in COMPARED:
            figures, sign = tables[name], DIRECTION[name]
            ours, plain = means(figures, OURS, sign), means(figures, control, sign)
            gaps = [mine - other for mine, other in zip(ours, plain, strict=True)]
            count, whole = signs(ours, plain), t_interval([sign * gap for gap in gaps])
            worse = float(wilcoxon(gaps, alternative="greater").pvalue) if any(gaps) else 1.0
            cells = (plus_minus(*whole, 3, sign=True), str(count.smaller), str(count.larger), f"{count.p:.3g}")
            yield f"| {TITLES[name].split(',')[0].lower()} | {control} | {' | '.join(cells)} | {worse:.3g} |"


def verdict(tables: Mapping[str, Figures]) -> Iterator[str]:
    """In words: who is first, and where ours is not."""
    for name in COMPARED:
        figures, sign, word = tables[name], DIRECTION[name], TITLES[name].split(",")[0].lower()
        ranks = mean_ranks({method: means(figures, method, sign) for method in METHODS})
        order = sorted(ranks, key=lambda method: ranks[method])
        place = order.index(OURS) + 1
        others = ", ".join(f"{method} {ranks[method]:.2f}" for method in order if method != OURS)
        yield f"- **{word}**: {OURS} is number {place} of {len(order)} by mean rank, {ranks[OURS]:.2f} ({others})."
        better: dict[str, list[str]] = {}
        for problem in names(figures):
            best = min(METHODS, key=lambda method: sign * mean(figures, problem, method))
            if best != OURS:
                better.setdefault(best, []).append(problem)
        where = "; ".join(f"{method} on {' / '.join(found)}" for method, found in better.items())
        yield f"  Not first on {sum(map(len, better.values()))} of {len(names(figures))} problems: {where or 'none'}."


def page(tables: Mapping[str, Figures], introduction: Callable[[int, int], str]) -> str:
    """The whole page; ``introduction`` gets the numbers of problems and draws."""
    problems = names(tables["error"])
    draws = max(len(tables["error"][problem][OURS]) for problem in problems)
    lines = [introduction(len(problems), draws), "", "## Who is first", "", *verdict(tables), ""]
    for name, figures in tables.items():
        lines += [f"## {TITLES[name]}", "", *main_table(figures, name), ""]
    lines += [f"## {OURS} against each", "", *against_all(tables), ""]
    lines += ["## Over all problems", "", ranks_sentence(tables), "", *over_all(tables), ""]
    lines += ["## What is due to augmentation, what to the scale", "", _CONTROLLED, "", *against_controls(tables), ""]
    for name in COMPARED:
        lines += [f"## {TITLES[name]}: {OURS} − each, by problem", "", *differences(tables, name), ""]
    return "\n".join(lines)
