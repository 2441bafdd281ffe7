"""The commands ``isda detect COMMAND``."""

from pathlib import Path

import tyro

from isda.cli.compare import compare_runs
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.tasks import CommandTask
from isda.cli.train import train_run
from isda.engine.executors import ExecutorOptions
from isda.engine.task import find_task
from isda.tasks.detection.settings import DetectionSettings


def train(
    settings: tyro.conf.OmitArgPrefixes[DetectionSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a detector on a backbone and write a run folder.

    ``isda detect train --data coco --network mask-rcnn --backbone runs/imagenet-resnet-50-isda-seed0``
    ``isda detect train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 8 -m isda detect train ...`` trains with eight processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(find_task("detection"), settings, machine, out, resume, hook)


def compare(
    settings: tyro.conf.OmitArgPrefixes[DetectionSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
    *,
    methods: tuple[str, ...],
    seeds: int = 3,
    out: Path | None = None,
    report: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train a detector from several backbones with several seeds, and compare their box AP.

    ``isda detect compare --data coco --methods multi-task:backbone=runs/ce multi-task:backbone=runs/isda``

    For one seed all runs see the same batches and mirroring, detectors on one network start with the same heads, and
    differences are taken seed by seed.
    Runs that are there already are not repeated, those that were interrupted go on.

    Args:
        settings: what all runs share.
        machine: where.
        spread: where the runs are made.
        methods: what to compare, each as in --method; differences are to the first.
        seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
        out: the folder for all runs; by default runs/compare-DATA.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    task = find_task("detection")
    compare_runs(CommandTask(task, (task,)), settings, machine, spread, methods, seeds, out, report, json)


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
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.data.coco import load
    from isda.engine.processes import join_processes
    from isda.tasks.detection.evaluation import load_detector

    trained = load_detector(run)
    config = trained.config
    judged = load(data or config.settings.get("data", config.data), data_root)
    with join_processes(device) as processes:
        scores = trained.measure(judged, processes.device)

    def tables() -> None:
        print(escape_control_characters(f"{config.describe()}, on the validation images of {judged.name}"))
        for figure in config.figures:
            if figure.name in scores.figures:
                print(f"{figure.heading:>24} {scores.figures[figure.name]:6.1f}")
        for name, value in scores.per_class["ap"].items():
            print(escape_control_characters(f"{name:>24} {value:6.1f}"))

    record = {"run": str(run), "data": judged.name, "scale": config.scale} | scores.figures
    show(record | {"per_class": scores.per_class}, json, tables)


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
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.engine.processes import join_processes
    from isda.tasks.detection.evaluation import draw_detections, load_detector, records_of, save_picture

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
            save_picture(draw_detections(image, kept, config.classes, score), picture)
            theirs = records_of(kept, 0, config.category_ids)
            told = ", ".join(f"{names[one['category_id']]} {one['score']:.2f}" for one in theirs) or "nothing"
            lines.append(f"{path}: {told} ({picture})")
            for one in theirs:
                one.pop("image_id")
                one["name"] = names[one["category_id"]]
            records.append({"image": str(path), "picture": str(picture), "objects": theirs})
    show(records, json, lambda: print("\n".join(map(escape_control_characters, lines))))
