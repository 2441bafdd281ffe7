"""The command ``isda study``."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import tyro

from isda.analysis.studies import STUDIES, row_record, rows_of, study_caption, study_heads, study_rows, write_study
from isda.cli.compare import make_runs, method_folders
from isda.cli.output import plain_table, show, table_console
from isda.cli.report import write_page
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.tasks import command_task
from isda.engine.executors import ExecutorOptions
from isda.engine.run_records import find_runs


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command with the settings of the task that the words ask for."""
    asked = command_task(words)

    def study(
        name: tyro.conf.Positional[Literal["sensitivity", "ablation", "explicit"]],
        settings: tyro.conf.OmitArgPrefixes[asked.task.settings_type],  # type: ignore[name-defined]
        machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        methods: tuple[str, ...] = (),
        values: tuple[float, ...] = (),
        seeds: int = 3,
        out: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Train variants of a method and show what each part of it is worth: Figures 10, 11 and Table 8.

        ``isda study sensitivity --data cifar10 --labels 3000 --methods isda isda-tilted --values 0.1 0.5 1 5 10``

        Runs that are there already are not repeated, those that were interrupted go on (docs/studies.md).

        Args:
            name: sensitivity (over lambda_0), ablation (covariances, schedule, bound, forgetting) or explicit (against
                the number of drawn features).
            settings: what all runs share.
            machine: where.
            spread: where the runs are made.
            methods: what is studied, each as in --method: isda and isda-tilted for sensitivity, isda for the others.
            values: along the axis: strengths, or numbers of drawn features; the paper's if left out.
            seeds: number of paired runs of each, at most 1000; their seeds count up from --seed.
            out: the folder for all runs, study.html and report.html; by default runs/study-NAME-DATA.
            json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
        """
        if settings.method is not None:
            raise ValueError("study takes --methods, not --method")
        kind = STUDIES[name]
        cells = kind.cells(methods or kind.methods, values or kind.values)
        folder = out or Path("runs") / f"study-{name}-{Path(settings.data or 'digits').stem}"
        there, failure = make_runs(asked, settings, machine, spread, [cell.method for cell in cells], seeds, folder)
        write_page(find_runs(method_folders(there)), [], [folder], folder / "report.html")
        first = settings.seed or 0
        rows = rows_of(cells, folder, range(first, first + seeds))
        page = folder / "study.html"
        write_study(page, kind, rows, shlex.join(["isda", "study", *words]), "report.html")

        def tables() -> None:
            console = table_console()
            console.print(plain_table(kind.title, study_heads(rows), study_rows(rows), study_caption(rows)))
            print(f"The pages are {page} and {folder / 'report.html'}", file=sys.stdout)

        show({"study": name, "rows": [row_record(row) for row in rows]}, json, tables)
        if failure is not None:
            raise failure

    return study
