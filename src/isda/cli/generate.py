"""The commands ``isda generate COMMAND``."""

from pathlib import Path

import tyro

from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.train import train_run
from isda.tasks.gan.settings import GANSettings
from isda.tasks.gan.task import Generation


def train(
    settings: tyro.conf.OmitArgPrefixes[GANSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a generator of images of each class and write a run folder.

    ``isda generate train --data digits --method acgan --width 0.25 --epochs 300``
    ``isda generate train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 4 -m isda generate train ...`` trains with four processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(Generation(), settings, machine, out, resume, hook)


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    judge: Path | None = None,
    seed: int | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure a trained generator by what a classifier sees: FID, KID, diversity, intended labels.

    Args:
        run: a run folder.
        judge: the run folder of another classifier of the same classes (`isda train`) than the run's own.
        seed: of the images; the run's if left out, which gives its figures once more.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.data import load
    from isda.engine.processes import join_processes
    from isda.tasks.gan.evaluation import load_generator_run

    trained = load_generator_run(run)
    config = trained.config
    data = load(config.settings.get("data") or config.data, data_root)
    chosen = trained.judge(data, judge)
    with join_processes(device) as processes:
        measured = trained.measure(data, chosen, processes, seed)
        first = processes.first
    if not first:
        return
    found, per_class = measured.figures(), measured.per_class()

    def tables() -> None:
        on = f"{config.evaluated_on} images of {data.name}"
        print(
            escape_control_characters(
                f"{config.method}, seed {config.seed}, beside the {on}, judged by {chosen.trained.config.network}"
            )
        )
        width = max(len(figure.heading) for figure in config.figures)
        for figure in config.figures:
            print(f"{figure.heading:>{width}} {found[figure.name]:9.{figure.digits}f}")
        names = max(map(len, ("class", *config.classes)))
        print(f"{'class':>{names}} diversity  intended label, %")
        for name in config.classes:
            spread, right = (per_class[key][name] for key in ("diversity", "accuracy"))
            shown = ("-" if spread is None else f"{spread:.2f}", "-" if right is None else f"{100 * right:.1f}")
            print(escape_control_characters(f"{name:>{names}} {shown[0]:>9} {shown[1]:>18}"))

    told = {"run": str(run), "data": data.name, "evaluated_on": config.evaluated_on, "judge_sha256": chosen.sha256}
    show(told | found | {"per_class": per_class}, json, tables)


def sample(
    run: tyro.conf.Positional[Path],
    *,
    out: Path = Path("samples.png"),
    columns: int = 10,
    seed: int = 0,
    npz: Path | None = None,
    per_class: int = 100,
    device: str = "auto",
) -> None:
    """Make images with a trained generator: a PNG with a row for each class, perhaps an .npz of many.

    Args:
        run: a run folder.
        out: the PNG file.
        columns: images in each row of it, at most 100.
        seed: of the images.
        npz: also write uint8 images (N, H, W, C), their labels and the names of the classes to this file.
        per_class: images of each class in it.
        device: auto, cpu, cuda or cuda:1.
    """
    import numpy as np
    import torch

    from isda._utils.files import atomic_write
    from isda._utils.seeds import generator
    from isda._utils.text import escape_control_characters
    from isda.engine.processes import join_processes
    from isda.tasks.gan.generators import load_generator, make_images
    from isda.tasks.gan.job import sample_grid

    for name, value in (("columns", columns), ("per_class", per_class)):
        if not 1 <= value <= (100 if name == "columns" else 1_000_000):
            raise ValueError(f"{name} must be from 1 to {100 if name == 'columns' else 1_000_000}, got {value}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    made = load_generator(run)
    with join_processes(device) as processes:
        network = made.network.to(processes.device)
        with atomic_write(out) as unfinished:
            unfinished.write_bytes(sample_grid(network, made.classes, seed, columns))
        print(escape_control_characters(f"{out}: {len(made.classes)} classes x {columns} images by {made.method}"))
        if npz is None:
            return
        labels = torch.arange(len(made.classes)).repeat(per_class)
        images = make_images(network, labels, generator(seed)).permute(0, 2, 3, 1).cpu().numpy()
        with atomic_write(npz) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, images=images, labels=labels.numpy(), classes=np.array(made.classes))
        print(escape_control_characters(f"{npz}: {len(labels)} images"))
