"""Maps of several runs side by side, from their folders to the page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from isda.analysis.maps.embedding import embed
from isda.analysis.maps.judged import Judged, judged_features
from isda.analysis.maps.page import View, write_maps
from isda.analysis.maps.separation import measure_separation
from isda.engine.folder.reading import read_run

__all__ = ["MapOptions", "draw_maps"]


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """How to draw; as the options of `isda map`."""

    by: str = "tsne"
    images: int = 2000
    perplexity: float = 30.0
    neighbours: int = 10
    seed: int = 0


def draw_maps(
    runs: Sequence[Path],
    out: Path,
    options: MapOptions,
    data_root: Path | None,
    device: torch.device,
    watched: Callable[[Sequence[Judged]], Iterable[Judged]] = iter,
) -> tuple[str, list[View]]:
    """Look at the runs, draw a map of each and write the page; returns its title and the maps.

    Args:
        runs: folders of finished runs of classifiers on one data set.
        out: the page.
        options: how.
        data_root: the folder of data sets.
        device: where features are computed.
        watched: goes through the runs while they are drawn, to show how far it is.

    Raises:
        ValueError: no run, runs that cannot be compared, or options out of range.
    """
    if not runs:
        raise ValueError("runs must be given: the folders of one or more finished runs")
    seen = [judged_features(run, data_root, device, most=options.images, seed=options.seed) for run in runs]
    sets = {(one.config.data, one.config.evaluated_on, len(one.labels)) for one in seen}
    if len(sets) > 1:
        raise ValueError(f"runs must be of one data set and judged alike, got {sorted(sets)}")
    views = [
        View(
            one,
            embed(one.features, options.by, perplexity=options.perplexity, seed=options.seed),
            measure_separation(one.features, one.labels, options.neighbours),
            read_run(one.folder).value,
        )
        for one in watched(seen)
    ]
    config = seen[0].config
    title = f"Features of {config.network} on {config.data}"
    words = ["isda", "map", *(run.as_posix() for run in runs), "--by", options.by, "--images", str(options.images)]
    words += ["--perplexity", f"{options.perplexity:g}", "--neighbours", str(options.neighbours)]
    words += ["--seed", str(options.seed), "--out", out.as_posix()]
    write_maps(out, title, views, options.by, options.neighbours, shlex.join(words))
    return title, views
