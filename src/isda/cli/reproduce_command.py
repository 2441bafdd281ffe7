"""The command ``isda reproduce``; `isda.cli.reproduce`, which imports torch, does its work."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import tyro

from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.engine.executors import ExecutorOptions

GPU_TFLOPS, GPU_BANDWIDTH = 150.0, 1.5


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command, whose pages name the command line."""

    def reproduce(
        names: tyro.conf.Positional[tuple[str, ...]],
        runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        execution: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        scale: Literal["paper", "small", "smoke"] = "smoke",
        only: tuple[str, ...] = (),
        seeds: int | None = None,
        gpu_tflops: float = GPU_TFLOPS,
        gpu_bandwidth: float = GPU_BANDWIDTH,
        out: Path | None = None,
        html: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Reproduce tables and figures of the paper, and print ours beside the paper's.

        ``isda reproduce table-2 --scale small --only CIFAR-10 --data-root data --jobs 2`` (docs/reproduce.md)
        ``isda reproduce list --scale paper`` lists all of them, what is done, and how long the rest takes.

        Finished runs are not repeated, interrupted ones are resumed. If a training fails, the others continue, it is
        marked in the table, and the command ends with an error.

        Args:
            names: table-1 to table-8, table-11, table-12, figure-5 to figure-11, figure-13, figure-14; all; or list.
            runtime: data folder, device and checkpoints of each run.
            execution: where the runs are executed. With --on slurm, submit and repeat the command until it prints the
                table: final runs depend on those on held-out data.
            scale: paper; small, an hour or two on a CPU; or smoke, minutes, to check that everything works.
            only: words that row and column must have, such as CIFAR-10 or ResNet-110; for figures, a training's name.
                One of several words that are separated by commas, such as ResNet-32,ResNet-110, is enough.
            seeds: of each training, at most 1000; by default 5, 3 and 2 by scale.
            gpu_tflops: of the GPU that list estimates for: 10^12 operations per second that large convolutions get.
            gpu_bandwidth: 10^12 bytes per second to and from its memory.
            out: the folder for all runs and pages, which tables share; by default runs/reproduce-SCALE.
            html: the page; by default NAME.html in that folder.
            json: a file for the result as JSON.
        """
        from isda.cli.reproduce import reproduce as run_reproduction

        gpu = (gpu_tflops, gpu_bandwidth)
        run_reproduction(names, runtime, execution, scale, only, seeds, gpu, out, html, json, words)

    return reproduce
