"""The page of benchmarks/problems.py, from its record: results/problems.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scipy.stats import wilcoxon

from csv_files import read_csv
from isda.report.across import mean_ranks, signs
from isda.report.statistics import Interval, level_of_each, paired_difference, t_interval
from isda.report.wording import number, plus_minus
from problem_methods import CONTROLS, OURS, RIVALS
from problem_sets import PROBLEMS

__all__ = ["page", "read"]

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


def difference(figures: Figures, problem: str, other: str, level: float, ours: str = OURS) -> Interval:
    """Ours - the other's, paired by draw."""
    mine, theirs = figures[problem][ours], figures[problem][other]
    draws = sorted(mine.keys() & theirs.keys())
    return paired_difference([mine[draw] for draw in draws], [theirs[draw] for draw in draws], level)


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
    level = level_of_each(comparisons(tables))
    for name in COMPARED:
        figures, sign = tables[name], DIRECTION[name]
        for rival in RIVALS:
            count = signs(means(figures, OURS, sign), means(figures, rival, sign))
            found = [difference(figures, problem, rival, level) for problem in names(figures)]
            clear = [sign * interval.mean for interval in found if interval.excludes_zero]
            cells = [
                count.smaller,
                count.larger,
                f"{count.p:.3g}",
                sum(c < 0 for c in clear),
                sum(c > 0 for c in clear),
            ]
            yield f"| {TITLES[name].split(',')[0].lower()} | {rival} | {' | '.join(map(str, cells))} |"


def comparisons(tables: Mapping[str, Figures]) -> int:
    """How many intervals the page has of ours against rivals."""
    return len(COMPARED) * len(RIVALS) * len(names(tables["error"]))


def differences(tables: Mapping[str, Figures], name: str) -> Iterator[str]:
    """Ours - each rival's on each problem, with intervals that hold together."""
    figures, level, digits = tables[name], level_of_each(comparisons(tables)), DIGITS[name]
    yield f"| problem | {' | '.join(RIVALS)} |"
    yield "|---|" + "---|" * len(RIVALS)
    for problem in names(figures):
        cells = [plus_minus(*difference(figures, problem, r, level), digits, sign=True) for r in RIVALS]
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


def page(tables: Mapping[str, Figures], introduction: Callable[[int, int, float], str]) -> str:
    """The whole page; ``introduction`` gets the numbers of problems and draws and the level of an interval."""
    problems = names(tables["error"])
    draws = max(len(tables["error"][problem][OURS]) for problem in problems)
    level = level_of_each(comparisons(tables))
    lines = [introduction(len(problems), draws, level), "", "## Who is first", "", *verdict(tables), ""]
    for name, figures in tables.items():
        lines += [f"## {TITLES[name]}", "", *main_table(figures, name), ""]
    lines += [f"## {OURS} against each", "", *against_all(tables), ""]
    lines += ["## What is due to augmentation, what to the scale", "", _CONTROLLED, "", *against_controls(tables), ""]
    for name in COMPARED:
        lines += [f"## {TITLES[name]}: {OURS} − each, by problem", "", *differences(tables, name), ""]
    return "\n".join(lines)
