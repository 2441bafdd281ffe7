"""The command ``isda predict``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["predict"]


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
    from isda.classification.trained import load_trained
    from isda.cli.output import show
    from isda.plain_text import harmless

    if not images:
        raise ValueError("images must name at least one image file, got none")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    trained = load_trained(run)
    best = trained.probabilities(images).topk(min(top, len(trained.config.classes)))
    lines, records = [], []
    for image, values, indices in zip(images, best.values.tolist(), best.indices.tolist(), strict=True):
        named = [(trained.config.classes[index], value) for index, value in zip(indices, values, strict=True)]
        lines.append(f"{image}: " + ", ".join(f"{name} {100 * value:.1f}%" for name, value in named))
        records.append({"image": str(image), "classes": [{"name": name, "probability": p} for name, p in named]})
    show(records, json, lambda: print("\n".join(map(harmless, lines))))
