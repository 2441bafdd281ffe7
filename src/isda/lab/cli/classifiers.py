"""The commands ``isda evaluate``, ``isda predict`` and ``isda export`` of trained classifiers."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from isda.lab.cli.runtime_options import JsonFile, MeasureOptions, check_image_files


def evaluate(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    data: str | None = None,
) -> None:
    """Measure a trained network: error, negative log-likelihood and calibration.

    Args:
        run: a run folder.
        common: data folder, device and JSON.
        data: another data set with the same classes, on whose test images the network is evaluated instead.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.data import load
    from isda.lab.engine.processes import join_processes
    from isda.lab.tasks.classification.trained import load_classifier
    from isda.lab.tasks.common.evaluation import figures_for

    trained = load_classifier(run)
    config, name = trained.config, data or trained.config.data
    part = config.evaluated_on if data is None else "test"
    images = load(data or config.settings.get("data") or config.data, common.data_root)
    with join_processes(common.device) as processes:
        measures = trained.measure(images, processes.device, own=data is None)

    def tables() -> None:
        run_text = f"{config.network}, {config.method}, {config.scale} scale, seed {config.seed}"
        print_escaped(f"{run_text}, on the {part} images of {name}")
        for figure in figures_for(part, len(config.classes)):
            if figure.name in measures:
                print(f"{figure.heading:>32} {measures[figure.name]:8.3f}")

    show({"run": str(run), "data": name, "evaluated_on": part, "scale": config.scale} | measures, common.json, tables)


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    top: int = 3,
    json: JsonFile = None,
) -> None:
    """Predict the class of image files.

    Args:
        run: a run folder.
        images: image files; each is resized to the size that the network was trained on.
        top: how many classes to name for each image.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.tasks.classification.trained import load_classifier

    check_image_files(images)
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    trained = load_classifier(run)
    best = trained.probabilities(images).topk(min(top, len(trained.config.classes)))
    lines, records = [], []
    for image, values, indices in zip(images, best.values.tolist(), best.indices.tolist(), strict=True):
        named = [(trained.config.classes[index], value) for index, value in zip(indices, values, strict=True)]
        lines.append(f"{image}: " + ", ".join(f"{name} {100 * value:.1f}%" for name, value in named))
        records.append({"image": str(image), "classes": [{"name": name, "probability": p} for name, p in named]})
    show(records, json, lambda: print_escaped("\n".join(lines)))


def export(
    run: tyro.conf.Positional[Path],
    *,
    library: Annotated[
        Literal["torchvision", "timm", "mmdetection", "onnx"], tyro.conf.arg(name="for")
    ] = "torchvision",
    out: Path,
) -> None:
    """Write a trained classifier for ONNX, or under the names that torchvision, timm or MMDetection load.

    ``isda export runs/mine --for mmdetection --out resnet50-isda.pth``
    ``isda export runs/mine --for onnx --out mine.onnx``

    An ONNX graph maps normalised images (N, C, H, W) to logits; class names, mean and standard deviation are in its
    metadata.

    Args:
        run: a run folder of `isda train`: for torchvision, timm and MMDetection with one of the ImageNet networks, or
            with timm:NAME; for ONNX with any.
        library: whose names, timm's for timm:NAME; or onnx (of the extra onnx).
        out: the file; .safetensors, or else as torch.save writes it; for ONNX .onnx.
    """
    from isda.lab.cli.output import print_escaped
    from isda.lab.networks.export import export as write
    from isda.lab.tasks.classification.trained import load_classifier
    from isda.lab.train import load_trained

    if library == "onnx":
        if out.suffix != ".onnx":
            raise ValueError(f"out must be the name of an .onnx file, got {out}")
        classifier = load_classifier(run)
        classifier.export_onnx(out)
        print_escaped(f"{classifier.config.network} of {run} as an ONNX graph: {out}")
        return
    trained = load_trained(run)
    write(trained.network, trained.config.network, library, out, trained.config.network_options)
    print_escaped(f"{trained.config.network} of {run} under the names of {library}: {out}")
