"""The table of docs/scale.md that says what the paper's tables take: python website/scale_table.py writes it.

The figures are those of `isda reproduce list --scale paper --precision bfloat16`, with 5 seeds and with 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from isda.lab.cli.reproduce_command import GPU_BANDWIDTH, GPU_TFLOPS
from isda.lab.reproduce.experiment import Experiment
from isda.lab.reproduce.registry import ALL, EXPERIMENTS
from isda.lab.reproduce.runner import ExperimentProgress, experiment_progress
from isda.lab.reproduce.training import SCALES, Training
from isda.lab.reproduce.workload import MachineSpeed

__all__ = ["PAGE", "table", "written"]

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
PRECISION = "bfloat16"
GPUS = (8, 64)
NO_RUNS = Path("no runs")
HOUR = 3600


class Everything(Experiment):
    """All trainings of all tables and figures, each once."""

    name = ALL

    @property
    def title(self) -> str:
        """In the first column."""
        return "all of them, shared trainings once"

    def trainings(self, only: Sequence[str] = ()) -> list[Training]:
        """Of the registry."""
        every = (training for one in EXPERIMENTS.values() for training in one.trainings(only))
        return list({training.name: training for training in every}.values())


@cache
def table() -> str:
    """The table, as Markdown."""
    gpu = MachineSpeed(GPU_TFLOPS[PRECISION] * 1e12, GPU_BANDWIDTH * 1e12, together=True)
    heads = ["", "runs", "10^18 operations", "one GPU", "one GPU, one seed", *(f"{count} GPUs" for count in GPUS)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    shown: dict[tuple[str, ...], list[str]] = {}
    for experiment in (*EXPERIMENTS.values(), Everything()):
        progress, one_seed = (_progress(experiment, seeds) for seeds in (SCALES["paper"].seeds, 1))
        if not progress.runs:
            continue
        hours = progress.seconds(gpu) / HOUR
        times = [hours, one_seed.seconds(gpu) / HOUR, *(hours / count for count in GPUS)]
        operations = sum(work.operations for work in progress.works) / 1e18
        row = (
            f"{progress.runs:,}",
            f"{operations:,.1f}",
            *(f"{time:,.0f}" if time >= 10 else f"{time:.1f}" for time in times),
        )
        shown.setdefault(row, []).append(experiment.title if experiment.name == ALL else experiment.name)
    return "\n".join([*lines, *(f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in shown.items())])


def _progress(experiment: Experiment, seeds: int) -> ExperimentProgress:
    scale = replace(SCALES["paper"], changes={"precision": PRECISION})
    return experiment_progress(experiment, scale, seeds, NO_RUNS, None)


def written(text: str) -> str:
    """The text of the page with the table in its place."""
    place = re.compile(r"(<!-- costs: [^>]*-->\n).*?(<!-- end of costs -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
