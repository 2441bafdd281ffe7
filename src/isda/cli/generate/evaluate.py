"""The command ``isda generate evaluate``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["evaluate"]


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
    from isda.cli.output import show
    from isda.data import load
    from isda.engine.processes import join_processes
    from isda.generative.trained import load_trained
    from isda.plain_text import harmless

    trained = load_trained(run)
    config = trained.config
    data = load(config.asked.get("data") or config.data, data_root)
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
            harmless(f"{config.method}, seed {config.seed}, beside the {on}, judged by {chosen.trained.config.network}")
        )
        width = max(len(figure.heading) for figure in config.figures)
        for figure in config.figures:
            print(f"{figure.heading:>{width}} {found[figure.name]:9.{figure.digits}f}")
        names = max(map(len, ("class", *config.classes)))
        print(f"{'class':>{names}} diversity  intended label, %")
        for name in config.classes:
            spread, right = (per_class[key][name] for key in ("diversity", "accuracy"))
            shown = ("-" if spread is None else f"{spread:.2f}", "-" if right is None else f"{100 * right:.1f}")
            print(harmless(f"{name:>{names}} {shown[0]:>9} {shown[1]:>18}"))

    told = {"run": str(run), "data": data.name, "evaluated_on": config.evaluated_on, "judge_sha256": chosen.sha256}
    show(told | found | {"per_class": per_class}, json, tables)
