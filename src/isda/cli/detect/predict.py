"""The command ``isda detect predict``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["predict"]


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("detections"),
    score: float = 0.5,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Find objects in image files, and draw their boxes and masks.

    Args:
        run: a run folder.
        images: image files.
        out: the folder for one PNG per image, with boxes, masks and names.
        score: least score of what is drawn and listed.
        device: auto, cpu, cuda or cuda:1.
        json: also write the detections to this file as JSON, as in COCO's result files; "-" writes JSON to the standard
            output and nothing else.
    """
    from isda.cli.output import show
    from isda.detection.evaluation import records_of
    from isda.detection.pictures import drawn, save
    from isda.detection.trained import load_detector
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    if not images:
        raise ValueError("images must name at least one image file, got none")
    if not 0 <= score <= 1:
        raise ValueError(f"score must lie in 0..1, got {score}")
    if len({image.stem for image in images}) < len(images):
        raise ValueError("images must differ in their names, of which the pictures are called")
    trained = load_detector(run)
    config = trained.config
    names = dict(zip(config.category_ids, config.classes, strict=True))
    lines, records = [], []
    with join_processes(device) as processes:
        for path, (image, found) in zip(images, trained.find(images, processes.device), strict=True):
            kept = {key: value[found["scores"] >= score] for key, value in found.items()}
            picture = out / f"{path.stem}.png"
            save(drawn(image, kept, config.classes, score), picture)
            theirs = records_of(kept, 0, config.category_ids)
            told = ", ".join(f"{names[one['category_id']]} {one['score']:.2f}" for one in theirs) or "nothing"
            lines.append(f"{path}: {told} ({picture})")
            for one in theirs:
                one.pop("image_id")
                one["name"] = names[one["category_id"]]
            records.append({"image": str(path), "picture": str(picture), "objects": theirs})
    show(records, json, lambda: print("\n".join(map(harmless, lines))))
