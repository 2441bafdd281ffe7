"""The command ``isda segment predict``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["predict"]


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("predictions"),
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    window: str | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Label the pixels of image files with a trained network.

    For each image NAME the folder gets NAME.png, whose pixels are class ids in the colours of the classes, and
    NAME-overlay.png to look at.

    Args:
        run: a run folder.
        images: image files of any size.
        out: the folder for the pictures.
        scales: factors on the size of the images, from 0.01 to 10; predictions are averaged.
        flip: average with the mirrored images, too.
        window: label by sliding windows of this size, SIDE or HEIGHTxWIDTH, two thirds of it apart.
        device: auto, cpu, cuda or cuda:1.
        json: also write the shares of the classes to this file as JSON; "-" writes JSON to the standard output only.
    """
    from isda.cli.output import show
    from isda.engine.processes import join_processes
    from isda.files import replacing
    from isda.plain_text import harmless
    from isda.segmentation.drawing import colours_of
    from isda.segmentation.pictures import label_picture, overlay
    from isda.segmentation.resolving import crop_size
    from isda.segmentation.trained import Way, load_trained

    if not images:
        raise ValueError("images must name at least one image file, got none")
    names = [path.stem for path in images]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"images must have names of their own, got {twice!r} twice")
    way = Way(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_trained(run)
    config, colours = trained.config, colours_of(trained.config)
    lines, records = [], []
    with join_processes(device) as processes:
        trained.network.to(processes.device)
        for path in images:
            image, labels = trained.label(path, way)
            pictures = {
                f"{path.stem}.png": label_picture(labels, config.classes, colours=colours),
                f"{path.stem}-overlay.png": overlay(image, None, labels, config.classes, colours=colours),
            }
            for name, content in pictures.items():
                with replacing(out / name) as unfinished:
                    unfinished.write_bytes(content)
            shares = labels.flatten().bincount(minlength=len(config.classes)) / labels.numel()
            seen = {config.classes[i]: float(shares[i]) for i in shares.argsort(descending=True).tolist() if shares[i]}
            records.append({"image": str(path), "labels": str(out / f"{path.stem}.png"), "classes": seen})
            lines.append(f"{path}: " + ", ".join(f"{name} {100 * share:.1f}%" for name, share in seen.items()))
    show(records, json, lambda: print("\n".join(map(harmless, lines))))
