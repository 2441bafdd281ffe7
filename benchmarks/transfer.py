"""Do features learnt with ISDA carry over better? Backbones from CIFAR-100, probed on CIFAR-10 and SVHN.

    python benchmarks/transfer.py --data-root ROOT --runs runs/transfer [--jobs 2]

ROOT holds cifar100, cifar10 and svhn_small (20,000 and 8,000 images of SVHN). A small network learns 10,000 images of
CIFAR-100 with cross-entropy and with ISDA, whose strength is chosen on held-out images with a seed of its own; five
paired seeds follow. A linear classifier is then fitted to the features of each (`isda transfer`). Everything is resumed
where it stopped; when all is there, benchmarks/results/transfer.md is written.
"""

from __future__ import annotations

from dataclasses import replace

from isda.classification.settings import Settings
from recording import Study

STRENGTHS = (0.5, 1.0, 2.0, 5.0)
CHOOSING_SEEDS = (100,)
TEST_SEEDS = (0, 1, 2, 3, 4)
HELD_OUT = 5000
SOURCE = Settings(
    data="cifar100",
    labels=10_000,
    network="fast-cnn",
    width=0.5,
    batch_size=64,
    epochs=15,
    augment="crop-flip",
    channels_last=True,
    evaluate_every=5,
)


def choose(study: Study) -> dict[float, float]:
    """Held-out error of ISDA at each strength."""
    methods = [f"isda:lambda_0={strength:g}" for strength in STRENGTHS]
    errors = study.errors(replace(SOURCE, held_out=HELD_OUT), methods, CHOOSING_SEEDS, "choose")
    return dict(zip(STRENGTHS, (errors[method] for method in methods), strict=True))


def main() -> None:
    """Make what is missing, then write the table."""
    study = Study.from_arguments(__doc__, "runs/transfer")
    held_out = choose(study)
    best = min(held_out, key=lambda strength: held_out[strength])
    print(held_out, best)
    methods = ["cross-entropy", f"isda:lambda_0={best:g}"]
    study.errors(SOURCE, methods, TEST_SEEDS, "backbones")


if __name__ == "__main__":
    main()
