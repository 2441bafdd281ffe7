"""Images per second of our batched augmentation and of torchvision's per-image v2 pipeline, in one thread.

Ours and theirs take turns within one run, so that other work on the machine hits both; a figure is the median of the
repetitions. torchvision is measured twice, on tensors and on PIL images (which its data sets return).

    python benchmarks/augment.py        # writes benchmarks/results/augment.{csv,md}, takes half a minute
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torchvision
from torch import Tensor
from torchvision.transforms import v2

from isda.lab.data.augment import (
    AutoAugment,
    Compose,
    Cutout,
    Draws,
    HorizontalFlip,
    Normalize,
    RandAugment,
    RandomCrop,
    Transform,
)

RESULTS = Path(__file__).parent / "results"
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]
BATCH_SIZES = (128, 512)
REPETITIONS = 9
PER_IMAGE = 128  # images per repetition of the per-image pipelines, whose speed does not depend on the batch


@dataclass
class Row:
    """One line of the table; speeds in images per second, ratios are ours over theirs."""

    pipeline: str
    batch_size: int
    ours: int
    torchvision_tensor: int
    torchvision_pil: int
    ratio_tensor: float
    ratio_pil: float


def pipelines() -> dict[str, tuple[Transform, v2.Transform]]:
    """Name -> (ours, torchvision's); both end in uint8 or normalised float32 alike."""
    crop_flip = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    policy = v2.AutoAugmentPolicy.CIFAR10
    ours_end, start = Normalize(MEAN, STD), (RandomCrop(4), HorizontalFlip())
    return {
        "crop + flip + normalise": (
            Compose(*start, ours_end),
            v2.Compose([*crop_flip, v2.ToImage(), *normalise]),
        ),
        "RandAugment (2 operations, magnitude 9)": (
            RandAugment(2, 9),
            v2.Compose([v2.RandAugment(2, 9), v2.ToImage()]),
        ),
        "AutoAugment (CIFAR-10 policy)": (
            AutoAugment("cifar10"),
            v2.Compose([v2.AutoAugment(policy), v2.ToImage()]),
        ),
        "crop + flip + RandAugment + normalise": (
            Compose(*start, RandAugment(2, 9), ours_end),
            v2.Compose([*crop_flip, v2.RandAugment(2, 9), v2.ToImage(), *normalise]),
        ),
        "crop + flip + AutoAugment + Cutout + normalise": (
            Compose(*start, AutoAugment("cifar10"), Cutout(16), ours_end),
            # A quarter of the area, always: RandomErasing is the nearest torchvision has to Cutout.
            v2.Compose(
                [
                    *crop_flip,
                    v2.AutoAugment(policy),
                    v2.ToImage(),
                    v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0)),
                    *normalise,
                ]
            ),
        ),
    }


def seconds(call: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, ours: Transform, theirs: v2.Transform, images: Tensor) -> Row:
    """Median speeds of the three ways, measured in turn."""
    tensors = list(images[:PER_IMAGE])
    pil_images = [v2.functional.to_pil_image(image) for image in tensors]
    indices = torch.arange(len(images))
    ways: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: ours(images, Draws.for_samples(indices, seed=0, epoch=1)),
        "tensor": lambda: torch.stack([theirs(image) for image in tensors]),
        "pil": lambda: torch.stack([theirs(image) for image in pil_images]),
    }
    results = [call() for call in ways.values()]  # also the warm-up
    assert len({(result.shape[1:], result.dtype) for result in results}) == 1, name
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPETITIONS):
        for way, call in ways.items():
            times[way].append(seconds(call))
    counts = [len(result) for result in results]
    speed = {way: count / statistics.median(times[way]) for way, count in zip(ways, counts, strict=True)}
    return Row(
        pipeline=name,
        batch_size=len(images),
        ours=round(speed["ours"]),
        torchvision_tensor=round(speed["tensor"]),
        torchvision_pil=round(speed["pil"]),
        ratio_tensor=round(speed["ours"] / speed["tensor"], 1),
        ratio_pil=round(speed["ours"] / speed["pil"], 1),
    )


def write(rows: list[Row]) -> None:
    """The same table as CSV and as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    names = [field.name for field in fields(Row)]
    with (RESULTS / "augment.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    lines = [
        "# Augmentation: images per second in one thread",
        "",
        "Generated by `python benchmarks/augment.py`.",
        "",
        f"3 x 32 x 32 uint8 images, random content; torch {torch.__version__.split('+')[0]}, torchvision "
        f"{torchvision.__version__.split('+')[0]}, CPU. Median of {REPETITIONS} repetitions in which ours and "
        "torchvision's (v2, image by image, on tensors and on PIL images) take turns. Ratios are ours over theirs.",
        "",
        "| pipeline | batch | ours | torchvision, tensors | torchvision, PIL | ratio to tensors | ratio to PIL |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.pipeline} | {row.batch_size} | {row.ours:,} | {row.torchvision_tensor:,} | {row.torchvision_pil:,} "
        f"| {row.ratio_tensor:.1f} | {row.ratio_pil:.1f} |"
        for row in rows
    ]
    (RESULTS / "augment.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for batch_size in BATCH_SIZES:
        images = torch.randint(0, 256, (batch_size, 3, 32, 32), dtype=torch.uint8)
        for name, (ours, theirs) in pipelines().items():
            rows.append(measure(name, ours, theirs, images))
            print(rows[-1], flush=True)
    write(rows)


if __name__ == "__main__":
    main()
