"""The commands ``isda generate COMMAND``."""

from pathlib import Path

import tyro

from isda.lab.cli.runtime_options import Device, MeasureOptions

TASK = "generation"
SETTINGS = "isda.lab.tasks.gan.settings:GANSettings"
COMPARED = ()
TASK_COMMANDS = {
    "train": """
``isda generate train --data digits --method acgan --width 0.25 --epochs 300``
``isda generate train --out runs/mine --resume`` resumes an interrupted run with its own settings.
``torchrun --nproc-per-node 4 -m isda generate train ...`` trains with four processes.
""",
}
"""Help of the commands that are generated from the task."""


def evaluate(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    judge: Path | None = None,
    seed: int | None = None,
) -> None:
    """Measure a trained generator with a classifier: FID, KID, diversity, intended labels.

    Args:
        run: a run folder.
        common: data folder, device and JSON.
        judge: the run folder of another classifier of the same classes (`isda train`) than the run's own.
        seed: of the images; by default the run's, which reproduces its figures.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.data import load
    from isda.lab.engine.processes import join_processes
    from isda.lab.tasks.gan.evaluation import load_generator_run

    trained = load_generator_run(run)
    config = trained.config
    data = load(config.settings.get("data") or config.data, common.data_root)
    classifier = trained.judge(data, judge)
    with join_processes(common.device) as processes:
        measured = trained.measure(data, classifier, processes, seed)
    if not processes.first:
        return
    figures, per_class = measured.figures(), measured.per_class()

    def tables() -> None:
        print_escaped(
            f"{config.method}, seed {config.seed}, against the {config.evaluated_on} images of {data.name}, measured "
            f"by {classifier.trained.config.network}"
        )
        width = max(len(figure.heading) for figure in config.figures)
        for figure in config.figures:
            print(f"{figure.heading:>{width}} {figures[figure.name]:9.{figure.digits}f}")
        names = max(map(len, ("class", *config.classes)))
        print(f"{'class':>{names}} diversity  intended label, %")
        for name in config.classes:
            spread, right = (per_class[key][name] for key in ("diversity", "accuracy"))
            shown = ("-" if spread is None else f"{spread:.2f}", "-" if right is None else f"{100 * right:.1f}")
            print_escaped(f"{name:>{names}} {shown[0]:>9} {shown[1]:>18}")

    record = {"run": str(run), "data": data.name, "evaluated_on": config.evaluated_on}
    show(record | {"judge_sha256": classifier.sha256, **figures, "per_class": per_class}, common.json, tables)


def sample(
    run: tyro.conf.Positional[Path],
    *,
    out: Path = Path("samples.png"),
    columns: int = 10,
    seed: int = 0,
    npz: Path | None = None,
    per_class: int = 100,
    device: Device = "auto",
) -> None:
    """Sample images from a trained generator: a PNG with a row per class, optionally an .npz of many.

    Args:
        run: a run folder.
        out: the PNG file.
        columns: images in each row of it, at most 100.
        seed: of the images.
        npz: also write uint8 images (N, H, W, C), their labels and the names of the classes to this file.
        per_class: images of each class in that file.
        device: to compute on.
    """
    import numpy as np
    import torch

    from isda.lab.choices import check_range
    from isda.lab.cli.output import print_escaped
    from isda.lab.engine.processes import join_processes
    from isda.lab.files import atomic_write
    from isda.lab.seeds import generator
    from isda.lab.tasks.common.generators import load_generator, make_images
    from isda.lab.tasks.gan.job import sample_grid

    check_range("columns", columns, 1, 100)
    check_range("per_class", per_class, 1, 1_000_000)
    check_range("seed", seed, 0, 2**63 - 1)
    trained = load_generator(run)
    with join_processes(device) as processes:
        network = trained.network.to(processes.device)
        with atomic_write(out) as unfinished:
            unfinished.write_bytes(sample_grid(network, trained.classes, seed, columns))
        print_escaped(f"{out}: {len(trained.classes)} classes x {columns} images by {trained.method}")
        if npz is None:
            return
        labels = torch.arange(len(trained.classes)).repeat(per_class)
        images = make_images(network, labels, generator(seed)).permute(0, 2, 3, 1).cpu().numpy()
        with atomic_write(npz) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, images=images, labels=labels.numpy(), classes=np.array(trained.classes))
        print_escaped(f"{npz}: {len(labels)} images")
