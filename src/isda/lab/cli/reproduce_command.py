"""The command ``isda reproduce``; `isda.lab.cli.reproduce`, which imports torch, does its work."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import tyro

from isda.lab.cli.runtime_options import JsonFile, RuntimeOptions
from isda.lab.engine.executors.runs import ExecutorOptions

PRECISION = "float32"
GPU_TFLOPS = {"float64": 10.0, "float32": 75.0, "bfloat16": 150.0, "float16": 150.0}
"""By precision: half of what an A100 is sold for; in float32 convolutions are TF32, as torch has it."""
GPU_BANDWIDTH = 1.5


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
        precision: Literal["float32", "float64", "bfloat16", "float16"] = "float32",
        labelled_per_batch: int | Literal["published"] | None = None,
        gpu_tflops: float | None = None,
        gpu_bandwidth: float = GPU_BANDWIDTH,
        biggan: str | None = None,
        out: Path | None = None,
        html: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Reproduce tables and figures of the paper, and print ours beside the paper's.

        ``isda reproduce table-2 --scale small --only CIFAR-10 --data-root data --jobs 2``
        ``isda reproduce list --scale paper`` lists all of them, what is done, and how long the rest takes.

        Finished runs are not repeated, interrupted ones are resumed. If a training fails, the others continue, it is
        marked in the table, and the command ends with an error.

        Args:
            names: table-1 to table-8, table-11, table-12, figure-5 to figure-11, figure-13, figure-14; all; or list.
            runtime: data folder, device and checkpoints of each run.
            execution: where the runs are executed.
            scale: paper; small, an hour or two on a CPU; or smoke, minutes, to check that everything works.
            only: words that row and column must have, such as CIFAR-10 or ResNet-110; for figures, a training's name.
                One of several words that are separated by commas, such as ResNet-32,ResNet-110, is enough.
            seeds: of each training, at most 1000; by default 5, 3 and 2 by scale.
            precision: of all trainings; bfloat16 and float16 are mixed precision. Generators do not take float16.
            labelled_per_batch: labelled images in each step of semi-supervised trainings; as many as unlabelled ones if
                not given. published: in the proportion of each method's publication.
            gpu_tflops: of the GPU that list estimates for: 10^12 operations per second that large convolutions get; 150
                in mixed precision if not given, 75 in float32, 10 in float64.
            gpu_bandwidth: 10^12 bytes per second to and from its memory.
            biggan: of Figures 7 and 14, as `isda visualize --generator` takes it; without it they show CIFAR-10.
            out: the folder for all runs and pages, which tables share; by default runs/reproduce-SCALE.
            html: the page; by default NAME.html in that folder.
            json: a file for the result as JSON.
        """
        from isda.lab.cli.reproduce import ReproduceOptions
        from isda.lab.cli.reproduce import reproduce as run_reproduction

        changes = {"precision": precision if precision != PRECISION else None, "labelled_per_batch": labelled_per_batch}
        options = ReproduceOptions(
            scale=scale,
            only=only,
            seeds=seeds,
            changes={key: value for key, value in changes.items() if value is not None},
            gpu=(GPU_TFLOPS[precision] if gpu_tflops is None else gpu_tflops, gpu_bandwidth),
            biggan=biggan,
            out=out,
            html=html,
            json=json,
            words=words,
        )
        run_reproduction(names, runtime, execution, options)

    return reproduce
