"""The command ``isda directions``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["directions"]


def directions(
    run: tyro.conf.Positional[Path],
    *,
    out: Path = Path("directions.html"),
    classes: tuple[str, ...] = (),
    directions: int = 5,
    images: int = 6,
    judge: Path | None = None,
    most: int | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Show the directions in which the features of each class vary, by training images, in one HTML page.

    Args:
        run: a run folder of a classifier.
        out: the page, one file that can be opened and passed on as it is.
        classes: names of the classes to show; all by default, of more than 20 the first 20.
        directions: of each class, those of the largest variance.
        images: at each end of a direction, and nearest to each moved feature.
        judge: the run folder of another network: does it tell the two ends of each direction apart?
        most: look at this many training images at most, equally many of each class; at all by default.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write everything but the images to this file as JSON; "-" writes JSON to the standard output and no
            table.
    """
    import shlex

    from isda.analysis.directions import make_atlas
    from isda.analysis.directions.page import write_atlas
    from isda.analysis.directions.table import atlas_table
    from isda.analysis.directions.wording import notes
    from isda.analysis.observing import observe
    from isda.cli.output import show
    from isda.cli.terminal import table_console
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    for name, value, largest in (("directions", directions, 100), ("images", images, 60)):
        if not 1 <= value <= largest:
            raise ValueError(f"{name} must be from 1 to {largest}, got {value}")
    with join_processes(device) as processes:
        observed = observe(run, data_root, processes.device, most=most)
        atlas = make_atlas(
            observed, classes=classes, directions=directions, images=images, judge=judge, device=processes.device
        )
    words = ["isda", "directions", run.as_posix(), "--directions", str(directions), "--images", str(images)]
    words += ["--classes", *classes] if classes else []
    words += ["--most", str(most)] if most is not None else []
    words += ["--judge", judge.as_posix()] if judge is not None else []
    write_atlas(atlas, out, shlex.join(words))

    def tables() -> None:
        table_console().print(atlas_table(atlas))
        print(harmless("\n".join([*notes(atlas), f"The page is {out}"])))

    show(atlas.as_json(), json, tables)
