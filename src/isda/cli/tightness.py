"""The command ``isda tightness``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["tightness"]

MOST_DRAWS = 1_000_000


def tightness(
    run: tyro.conf.Positional[Path],
    *,
    strengths: tuple[float, ...] = (),
    lambda_0: float | None = None,
    images: int = 500,
    draws: int = 1000,
    seed: int = 0,
    out: Path = Path("tightness.html"),
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure how far the published and the tilted bound lie above the expectation that they bound.

    ``isda train --checkpoint-steps 100 --keep 100 --out runs/one; isda tightness runs/one`` (docs/tightness.md)

    Args:
        run: a run folder of a classifier, finished or not; every checkpoint in it is a point of the curve.
        strengths: also measure the finished network at these strengths, with the covariances of its final features.
        lambda_0: the strength at the end of training, instead of the run's own (0.5 for runs without).
        images: of the training set that are looked at.
        draws: per image and point, at most 1000000; each comes with its opposite.
        seed: of the draws, and of which images.
        out: the page, one file that can be opened and passed on as it is.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from rich.text import Text

    from isda.analysis.tightness.drawing import TightnessOptions, draw_tightness
    from isda.analysis.tightness.page import HEADS, bounds_record, cells
    from isda.cli.output import show
    from isda.cli.terminal import plain_table, table_console, tracked
    from isda.engine.folder.run_folder import RunFolder
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    if draws > MOST_DRAWS:
        raise ValueError(f"draws must be at most {MOST_DRAWS}, got {draws}")
    options = TightnessOptions(strengths=strengths, lambda_0=lambda_0, images=images, draws=draws, seed=seed)
    with join_processes(device) as processes:
        title, moments, finished = draw_tightness(
            run,
            out,
            options,
            data_root,
            processes.device,
            lambda points: tracked(points, "checkpoints", len(RunFolder(run).checkpoints.steps)),
        )

    def tables() -> None:
        console = table_console()
        rows = [[f"{moment.epoch:.1f}", *cells(moment.bounds)] for moment in moments]
        console.print(plain_table(title, ["epoch", *HEADS], rows))
        if finished:
            console.print(plain_table("The finished network", list(HEADS), [cells(bounds) for bounds in finished]))
        console.print(Text(harmless(f"The page is {out}")), soft_wrap=True)

    over = [{"step": one.step, "epoch": one.epoch, "own": one.own} | bounds_record(one.bounds) for one in moments]
    show({"run": str(run), "training": over, "finished": [bounds_record(one) for one in finished]}, json, tables)
