"""First evidence on real images: does the tighter bound generalise better, and does forgetting stale features help?

    python benchmarks/evidence.py --data-root ROOT --runs runs/evidence [--jobs 2]

ROOT holds cifar10 and cifar100. A small network learns a few thousand images without image augmentation, which it fits
almost perfectly. The strength lambda_0 of each variant is chosen on 5,000 held-out training images with seeds of its own;
the runs on the test set follow with five other seeds, paired between methods. Everything is resumed where it stopped;
when all runs are there, benchmarks/results/evidence.{csv,md} and the metrics of each run are written.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from isda.train.comparing import Watcher, compare
from isda.train.settings import Settings

VARIANTS = {
    "jensen": "isda:",
    "jensen, decay": "isda:decay=0.99,",
    "tilted": "isda-tilted:",
    "tilted, decay": "isda-tilted:decay=0.99,",
}
STRENGTHS = (0.5, 2.0, 5.0, 10.0)
CHOOSING_SEEDS, TEST_SEEDS = (100, 101), (0, 1, 2, 3, 4)
HELD_OUT = 5000
SETTINGS = {
    "cifar10": Settings(data="cifar10", labels=3000, epochs=20),
    "cifar100": Settings(data="cifar100", labels=4000, epochs=25),
}


def complete(settings: Settings, held_out: int = 0) -> Settings:
    """What all runs share: a narrow network that fits its training images, no image augmentation."""
    from dataclasses import replace

    return replace(
        settings,
        network="fast-cnn",
        width=0.5,
        batch_size=64,
        augment="none",
        channels_last=True,
        evaluate_every=5,
        held_out=held_out,
    )


class Lines(Watcher):
    """One line per finished run."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        error = "" if problem else f"{json.loads((folder / 'result.json').read_text())['error']:.2f}%"
        print(folder, problem or error, flush=True)


def choose(name: str, runs: Path, jobs: int, root: Path | None) -> dict[str, float]:
    """lambda_0 of each variant: the one with the smallest mean error on held-out images."""
    methods = [f"{prefix}lambda_0={strength:g}" for prefix in VARIANTS.values() for strength in STRENGTHS]
    out = runs / "choose" / name
    folders = compare(
        complete(SETTINGS[name], HELD_OUT), methods, CHOOSING_SEEDS, out, jobs=jobs, data_root=root, watcher=Lines()
    )
    errors: dict[str, list[float]] = {method: [] for method in methods}
    for folder, method in zip(folders, methods * len(CHOOSING_SEEDS), strict=True):
        errors[method].append(json.loads((folder / "result.json").read_text())["error"])
    return {
        variant: min(STRENGTHS, key=lambda strength: statistics.fmean(errors[f"{prefix}lambda_0={strength:g}"]))
        for variant, prefix in VARIANTS.items()
    }


def main() -> None:
    """Choose, train, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    for name in SETTINGS:
        chosen = choose(name, arguments.runs, arguments.jobs, arguments.data_root)
        print(name, chosen, flush=True)
        methods = ["cross-entropy"] + [f"{VARIANTS[variant]}lambda_0={strength:g}" for variant, strength in chosen.items()]
        compare(
            complete(SETTINGS[name]),
            methods,
            TEST_SEEDS,
            arguments.runs / "test" / name,
            jobs=arguments.jobs,
            data_root=arguments.data_root,
            watcher=Lines(),
        )


if __name__ == "__main__":
    main()
