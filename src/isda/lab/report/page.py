"""Self-contained HTML pages: one file each that needs no network, server or script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from isda import __version__
from isda.lab.engine.run_records import RunRecord
from isda.lab.engine.search import SearchRecord
from isda.lab.files import write_text
from isda.lab.report.comparison import summarise
from isda.lab.report.searches import search_section
from isda.lab.report.sections import comparison_section
from isda.lab.report.tables import templates
from isda.lab.report.wording import counted


def write_page(
    path: Path, template: str = "page.html", *, kicker: str, headline: str, command: str, **context: object
) -> None:
    """Write a page, atomically.

    Args:
        path: the HTML file; its folder is created if necessary.
        template: of this package, or the text of one that extends page.html.
        kicker: the command that writes such pages, above the headline.
        headline: what the page shows, in one sentence.
        command: the command line that made the page.
        **context: what the template shows.
    """
    found = templates().get_template(template) if template.endswith(".html") else templates().from_string(template)
    page = found.render(kicker=kicker, headline=headline, command=command, version=__version__, **context)
    write_text(Path(path), page + "\n")


def write_report(
    runs: Sequence[RunRecord],
    path: Path,
    title: str | None = None,
    command: str | None = None,
    searches: Sequence[SearchRecord] = (),
    planned: float | None = None,
) -> None:
    """Write the page of runs and searches, atomically.

    Args:
        runs: as `find_runs` returns them.
        path: the HTML file; its folder is created if necessary.
        title: of the window, and the headline of a page with several comparisons.
        command: the command line that made the page; by default `isda report` in the folder of the page.
        searches: as `find_searches` returns them.
        planned: a difference that headlines name the seeds for, see `Comparison.finding`.
    """
    path = Path(path)
    if command is None:
        folders = [Path(os.path.relpath(run.folder, path.parent)).as_posix() for run in runs]
        command = shlex.join(["isda", "report", *folders, "--out", path.name])
    comparisons = summarise(runs) if runs or not searches else []
    sections = [comparison_section(one, path.parent, planned) for one in comparisons]
    sections += [search_section(search) for search in searches]
    counts = (counted(len(comparisons), "comparison"), f"{len(searches)} search{'es' * (len(searches) > 1)}")
    several = " and ".join(count for count in counts if not count.startswith("0"))
    write_page(
        path,
        "report.html",
        kicker="isda report",
        headline=sections[0]["headline"] if len(sections) == 1 else title or several,
        command=command,
        title=title,
        sections=sections,
        styles=max([len(comparison.methods) for comparison in comparisons], default=0),
    )
