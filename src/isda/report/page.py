"""The HTML report: one file that needs no network, server or script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from isda import __version__
from isda._utils.files import write_text
from isda.engine.run_records import RunRecord
from isda.engine.tuning.records import SearchRecord
from isda.report.markup import Markup, asset, document, join, tag
from isda.report.searches import search_section
from isda.report.sections import section
from isda.report.summary import Comparison, summarise
from isda.report.wording import counted, scale_text


def write_report(
    runs: Sequence[RunRecord],
    path: Path,
    title: str | None = None,
    command: str | None = None,
    searches: Sequence[SearchRecord] = (),
) -> None:
    """Write the page of these runs; a reader never sees half of it.

    Args:
        runs: as `find_runs` returns them.
        path: the HTML file; its folder is made if it is missing.
        title: the heading; by default it names methods, data sets and networks.
        command: the command line that made the page; by default the `isda report` that makes it from its folder.
        searches: what else to show, as `find_searches` returns them.
    """
    path = Path(path)
    text = render_report(runs, path.parent, title, command or _command(runs, path), searches)
    write_text(path, text)


def render_report(
    runs: Sequence[RunRecord], folder: Path, title: str | None, command: str, searches: Sequence[SearchRecord] = ()
) -> str:
    """The page as text; `folder` is where it will be, from which it names the run folders."""
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
            *(section(one, index, styles, folder) for index, one in enumerate(comparisons, start=1)),
            *(search_section(one, index, folder) for index, one in enumerate(searches, start=1)),
        ),
        _footer(command, len(runs)),
        tag("script", Markup(asset("readout.js"))),
        style="\n".join(switches),
    )


def _styles(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """Each label's look, the same for the whole page; the first is for what is the baseline wherever it appears.

    Several labels may have that one: none of them meets another.
    """
    labels = dict.fromkeys(method.label for one in comparisons for method in one.methods)
    first = {one.baseline.label for one in comparisons if one.baseline.runs[0].is_baseline}
    first -= {method.label for one in comparisons for method in one.methods[1:]}
    others = [label for label in labels if label not in first]
    return dict.fromkeys(first, 0) | {label: index for index, label in enumerate(others, start=1 if first else 0)}


def _command(runs: Sequence[RunRecord], path: Path) -> str:
    folders = [Path(os.path.relpath(run.folder, path.parent)).as_posix() for run in runs]
    return shlex.join(["isda", "report", *folders, "--out", path.name])


def _title(comparisons: Sequence[Comparison], methods: int) -> str:
    sets = list(dict.fromkeys(comparison.runs[0].config.data for comparison in comparisons))
    counted = f"{methods} methods compared" if methods > 1 else comparisons[0].baseline.label
    return f"{counted} on {' and '.join([', '.join(sets[:-1]), sets[-1]] if len(sets) > 1 else sets)}"


def _header(heading: str, comparisons: Sequence[Comparison], searches: Sequence[SearchRecord], count: int) -> Markup:
    found = [*(one.scale for one in comparisons), *(one.scale for one in searches)]
    scales = dict.fromkeys(map(scale_text, found))
    finished = sum(run.result is not None for comparison in comparisons for run in comparison.runs)
    state = "all finished" if finished == count else f"{finished} of them finished"
    parts: list[str] = [
        tag("p", "isda report", class_="kicker"),
        tag("h1", heading),
        tag("p", f"{counted(count, 'run')}, {state}. Scale {'; '.join(scales)}.", class_="lede"),
    ]
    if len(comparisons) + len(searches) > 1:
        titles = [(one.title, f"#c{index}") for index, one in enumerate(comparisons, start=1)]
        titles += [(f"Search: {one.title}", f"#s{index}") for index, one in enumerate(searches, start=1)]
        links = (tag("li", tag("a", title, href=href)) for title, href in titles)
        parts.append(tag("nav", tag("ul", *links), aria_label="Comparisons"))
    return tag("header", *parts)


def _footer(command: str, count: int) -> Markup:
    told = f" with isda {__version__} from {counted(count, 'run folder')}; each section lists its own."
    return tag("footer", tag("p", join(["Made by ", tag("code", command), told])))
