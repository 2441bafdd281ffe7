"""The command ``isda evaluate``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["evaluate"]


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: str | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure a trained network: error, negative log-likelihood and calibration.

    Args:
        run: a run folder.
        data: another data set with the same classes, by whose test images the network is then judged.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda.classification.figures import figures_for
    from isda.classification.trained import load_trained
    from isda.cli.output import show
    from isda.data import load
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    trained = load_trained(run)
    config, name = trained.config, data or trained.config.data
    place = data or config.asked.get("data") or config.data
    part = config.evaluated_on if data is None else "test"
    with join_processes(device) as processes:
        measures = trained.measure(load(place, data_root), processes.device, own=data is None)
    heading = (
        f"{config.network}, {config.method}, {config.scale} scale, seed {config.seed}, on the {part} images of {name}"
    )

    def tables() -> None:
        print(harmless(heading))
        for figure in figures_for(part, len(config.classes)):
            if figure.name in measures:
                print(f"{figure.heading:>32} {measures[figure.name]:8.3f}")

    show({"run": str(run), "data": name, "evaluated_on": part, "scale": config.scale} | measures, json, tables)
