"""The command ``isda study``."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import tyro

from isda.lab.cli.compare import method_folders, run_methods
from isda.lab.cli.report import write_page
from isda.lab.cli.runtime_options import JsonFile, RuntimeOptions
from isda.lab.cli.tasks import command_task
from isda.lab.engine.executors import ExecutorOptions


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command with the settings of the task that the words select."""
    selected = command_task(words)

    def study(
        name: tyro.conf.Positional[Literal["sensitivity", "ablation", "explicit"]],
        settings: tyro.conf.OmitArgPrefixes[selected.settings_type],  # type: ignore[name-defined]
        runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        execution: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        methods: tuple[str, ...] = (),
        values: tuple[float, ...] = (),
        seeds: int = 3,
        out: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Train variants of a method and show the contribution of each part: Figures 10, 11 and Table 8.

        ``isda study sensitivity --data cifar10 --labels 3000 --methods isda isda-tilted --values 0.1 0.5 1 5 10``

        Finished runs are not repeated, interrupted ones are resumed (docs/studies.md).

        Args:
            name: sensitivity (over lambda_0), ablation (covariances, schedule, bound, forgetting) or explicit (against
                the number of drawn features).
            settings: what all runs share.
            runtime: data folder, device and checkpoints of each run.
            execution: where the runs are executed.
            methods: to study, each as in --method; isda by default, for sensitivity isda-tilted, too.
            values: along the axis: strengths, or numbers of drawn features; the paper's by default.
            seeds: number of paired runs of each, at most 1000; their seeds count up from --seed.
            out: the folder for all runs, study.html and report.html; by default runs/study-NAME-DATA.
            json: a file for the result as JSON.
        """
        from isda.lab.analysis import studies
        from isda.lab.cli.output import plain_table, show, table_console
        from isda.lab.engine.comparison import seed_range
        from isda.lab.engine.run_records import find_runs

        kind = studies.STUDIES[name]
        cells = kind.cells(methods or kind.methods, values or kind.values)
        folder = out or selected.default_folder(f"study-{name}", settings)
        numbers = seed_range(seeds, settings.seed)
        cell_methods = [cell.method for cell in cells]
        runs, failure = run_methods("study", selected, settings, runtime, execution, cell_methods, numbers, folder)
        write_page(find_runs(method_folders(runs)), [], [folder], folder / "report.html")
        rows = studies.rows_of(cells, folder, numbers)
        page = folder / "study.html"
        studies.write_study(page, kind, rows, shlex.join(["isda", "study", *words]), "report.html")

        def tables() -> None:
            console = table_console()
            console.print(
                plain_table(
                    kind.title, studies.study_heads(rows), studies.study_rows(rows), studies.study_caption(rows)
                )
            )
            print(f"The pages are {page} and {folder / 'report.html'}")

        show({"study": name, "rows": [studies.row_record(row) for row in rows]}, json, tables)
        if failure is not None:
            raise failure

    return study
