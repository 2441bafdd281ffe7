"""The commands ``isda evaluate``, ``isda predict`` and ``isda export`` of trained classifiers."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from isda.cli.runtime_options import JsonFile


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
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.data import load
    from isda.engine.processes import join_processes
    from isda.tasks.classification.trained import load_classifier
    from isda.tasks.common.evaluation import figures_for

    trained = load_classifier(run)
    config, name = trained.config, data or trained.config.data
    place = data or config.settings.get("data") or config.data
    part = config.evaluated_on if data is None else "test"
    with join_processes(device) as processes:
        measures = trained.measure(load(place, data_root), processes.device, own=data is None)
    heading = (
        f"{config.network}, {config.method}, {config.scale} scale, seed {config.seed}, on the {part} images of {name}"
    )

    def tables() -> None:
        print(escape_control_characters(heading))
        for figure in figures_for(part, len(config.classes)):
            if figure.name in measures:
                print(f"{figure.heading:>32} {measures[figure.name]:8.3f}")

    show({"run": str(run), "data": name, "evaluated_on": part, "scale": config.scale} | measures, json, tables)


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    top: int = 3,
    json: JsonFile = None,
) -> None:
    """Say what a trained network sees in image files.

    Args:
        run: a run folder.
        images: image files; each is resized to the size that the network was trained on.
        top: how many classes to name for each image.
        json: also write the predictions to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.tasks.classification.trained import load_classifier

    if not images:
        raise ValueError("images must name at least one image file, got none")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    trained = load_classifier(run)
    best = trained.probabilities(images).topk(min(top, len(trained.config.classes)))
    lines, records = [], []
    for image, values, indices in zip(images, best.values.tolist(), best.indices.tolist(), strict=True):
        named = [(trained.config.classes[index], value) for index, value in zip(indices, values, strict=True)]
        lines.append(f"{image}: " + ", ".join(f"{name} {100 * value:.1f}%" for name, value in named))
        records.append({"image": str(image), "classes": [{"name": name, "probability": p} for name, p in named]})
    show(records, json, lambda: print("\n".join(map(escape_control_characters, lines))))


def export(
    run: tyro.conf.Positional[Path],
    *,
    library: Annotated[Literal["torchvision", "timm", "mmdetection"], tyro.conf.arg(name="for")] = "torchvision",
    out: Path,
) -> None:
    """Write a trained classifier under the names that torchvision, timm or MMDetection load.

    ``isda export runs/mine --for mmdetection --out resnet50-isda.pth``

    Args:
        run: a run folder of `isda train` with one of the ImageNet networks, or with timm:NAME.
        library: whose names; timm's for timm:NAME.
        out: the file; .safetensors, or else as torch.save writes it.
    """
    from isda._utils.text import escape_control_characters
    from isda.networks.export import export as write
    from isda.train import load_trained

    trained = load_trained(run)
    write(trained.network, trained.config.network, library, out, trained.config.network_options)
    print(escape_control_characters(f"{trained.config.network} of {run} under the names of {library}: {out}"))
