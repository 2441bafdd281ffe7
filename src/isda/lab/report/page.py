"""The HTML report: one file that needs no network, server or script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from isda import __version__
from isda.lab.engine.run_records import RunRecord
from isda.lab.engine.search import SearchRecord
from isda.lab.files import write_text
from isda.lab.report.markup import Markup, asset, document, join, tag
from isda.lab.report.searches import search_section
from isda.lab.report.sections import section
from isda.lab.report.summary import Comparison, summarise
from isda.lab.report.wording import counted, has_scale, scale_text


def write_report(
    runs: Sequence[RunRecord],
    path: Path,
    title: str | None = None,
    command: str | None = None,
    searches: Sequence[SearchRecord] = (),
    *,
    accuracy: bool = False,
) -> None:
    """Write the page of runs and searches, atomically.

    Args:
        runs: as `find_runs` returns them.
        path: the HTML file; its folder is created if necessary.
        title: the heading; by default from methods and data sets.
        command: the command line that made the page; by default `isda report` in the folder of the page.
        searches: as `find_searches` returns them.
        accuracy: whether to show the accuracy beside the error.
    """
    path = Path(path)
    if command is None:
        folders = [Path(os.path.relpath(run.folder, path.parent)).as_posix() for run in runs]
        command = shlex.join(["isda", "report", *folders, "--out", path.name])
    write_text(path, render_report(runs, path.parent, title, command, searches, accuracy=accuracy))


def render_report(
    runs: Sequence[RunRecord],
    folder: Path,
    title: str | None,
    command: str,
    searches: Sequence[SearchRecord] = (),
    *,
    accuracy: bool = False,
) -> str:
    """The page as text; run folders are named relative to `folder`."""
    comparisons = summarise(runs) if runs or not searches else []
    styles = _styles(comparisons)
    heading = title or (_title(comparisons, len(styles)) if comparisons else f"Settings chosen on {searches[0].title}")
    # A method that is switched off in a section's key disappears from that section's charts.
    switches = (
        f'section:has([data-method="{style}"]:not(:checked)) .chart .m{style} {{ display: none; }}'
        for style in sorted(set(styles.values()))
    )
    return document(
        heading,
        _header(heading, comparisons, searches, len(runs)),
        tag(
            "main",
            *(
                section(comparison, index, styles, folder, accuracy=accuracy)
                for index, comparison in enumerate(comparisons, start=1)
            ),
            *(search_section(search, index, folder) for index, search in enumerate(searches, start=1)),
        ),
        _footer(command, len(runs)),
        tag("script", Markup(asset("readout.js"))),
        style="\n".join(switches),
    )


def _styles(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """The style of each label on the whole page; the first is for labels that are the baseline wherever they appear.

    Several labels may share it: no comparison has two of them.
    """
    labels = dict.fromkeys(method.label for comparison in comparisons for method in comparison.methods)
    first = {comparison.baseline.label for comparison in comparisons if comparison.baseline.runs[0].is_baseline}
    first -= {method.label for comparison in comparisons for method in comparison.methods[1:]}
    others = [label for label in labels if label not in first]
    return dict.fromkeys(first, 0) | {label: index for index, label in enumerate(others, start=1 if first else 0)}


def _title(comparisons: Sequence[Comparison], methods: int) -> str:
    sets = list(dict.fromkeys(comparison.runs[0].config.data for comparison in comparisons))
    subject = f"{methods} methods compared" if methods > 1 else comparisons[0].baseline.label
    return f"{subject} on {' and '.join([', '.join(sets[:-1]), sets[-1]] if len(sets) > 1 else sets)}"


def _header(heading: str, comparisons: Sequence[Comparison], searches: Sequence[SearchRecord], count: int) -> Markup:
    scales = [scale_text(comparison.config) for comparison in comparisons if has_scale(comparison.config)]
    scales += [scale_text(search) for search in searches if has_scale(search)]
    described = "; ".join(dict.fromkeys(scales))
    finished = sum(run.result is not None for comparison in comparisons for run in comparison.runs)
    state = "all finished" if finished == count else f"{finished} of them finished"
    parts: list[str] = [
        tag("p", "isda report", class_="kicker"),
        tag("h1", heading),
        tag(
            "p",
            f"{counted(count, 'run')}, {state}.{f' Scale {described}.' if described else ''}",
            class_="lede",
        ),
    ]
    if len(comparisons) + len(searches) > 1:
        titles = [(comparison.title, f"#c{index}") for index, comparison in enumerate(comparisons, start=1)]
        titles += [(f"Search: {search.title}", f"#s{index}") for index, search in enumerate(searches, start=1)]
        links = (tag("li", tag("a", title, href=href)) for title, href in titles)
        parts.append(tag("nav", tag("ul", *links), aria_label="Comparisons"))
    return tag("header", *parts)


def _footer(command: str, count: int) -> Markup:
    source = f" with isda {__version__} from {counted(count, 'run folder')}; each section lists its own."
    return tag("footer", tag("p", join(["Made by ", tag("code", command), source])))
