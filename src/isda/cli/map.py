"""The command ``isda map``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.cli.options import JsonFile

__all__ = ["map"]


def map(  # the command has this name
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    by: Literal["tsne", "umap"] = "tsne",
    images: int = 2000,
    perplexity: float = 30.0,
    neighbours: int = 10,
    seed: int = 0,
    out: Path = Path("map.html"),
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Draw maps of the features of runs side by side, with figures of how well they keep the classes apart.

    ``isda map runs/plain runs/isda`` (docs/maps.md)

    Args:
        runs: folders of finished runs of classifiers on one data set.
        by: tsne, or umap (pip install 'isda-torch[umap]').
        images: that are looked at, of those that the runs were judged by; the same for all runs.
        perplexity: of t-SNE, about the number of neighbours that count; for UMAP that number.
        neighbours: k of the accuracy of the nearest neighbours.
        seed: of the map, and of which images.
        out: the page, one file that can be opened and passed on as it is.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from dataclasses import asdict

    from rich.text import Text

    from isda.analysis.maps.drawing import MapOptions, draw_maps
    from isda.analysis.maps.page import HEADS, cells
    from isda.cli.output import show
    from isda.cli.terminal import plain_table, table_console, tracked
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to 2^32 - 1, got {seed}")
    options = MapOptions(by=by, images=images, perplexity=perplexity, neighbours=neighbours, seed=seed)
    with join_processes(device) as processes:
        title, views = draw_maps(
            runs, out, options, data_root, processes.device, lambda seen: tracked(seen, "maps", len(seen))
        )

    def tables() -> None:
        console = table_console()
        console.print(plain_table(title, HEADS, [cells(view) for view in views]))
        console.print(Text(harmless(f"The page is {out}")), soft_wrap=True)

    record = [
        {"run": str(view.judged.folder), "title": view.title, "images": len(view.judged.labels), "error": view.error}
        | asdict(view.separation)
        for view in views
    ]
    show(record, json, tables)
