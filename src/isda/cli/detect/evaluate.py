"""The command ``isda detect evaluate``."""

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
    """Measure a trained detector: COCO's average precision of boxes and masks, per class too.

    Args:
        run: a run folder.
        data: another set with the same categories, by whose validation images the detector is then judged.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda.cli.output import show
    from isda.data.coco import load
    from isda.detection.trained import load_detector
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    trained = load_detector(run)
    config = trained.config
    judged = load(data or config.asked.get("data", config.data), data_root)
    with join_processes(device) as processes:
        scores = trained.measure(judged, processes.device)

    def tables() -> None:
        print(harmless(f"{config.describe()}, on the validation images of {judged.name}"))
        for figure in config.figures:
            if figure.name in scores.figures:
                print(f"{figure.heading:>24} {scores.figures[figure.name]:6.1f}")
        for name, value in scores.per_class["ap"].items():
            print(harmless(f"{name:>24} {value:6.1f}"))

    record = {"run": str(run), "data": judged.name, "scale": config.scale} | scores.figures
    show(record | {"per_class": scores.per_class}, json, tables)
