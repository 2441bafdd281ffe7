"""What ISDA adds to a step of PSPNet with ResNet-101 at the paper's size: memory, and its share of the time.

    python benchmarks/segmentation.py [--crop 769] [--rounds 3]

Writes benchmarks/results/segmentation.md. The network's step is measured on one image and scaled to the batch of 8; the
criteria on features of all 8 (8 x 512 x 97 x 97, 19 classes). Times are CPU seconds of one thread, so that other
programs on the machine hardly disturb them; memory is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda import ISDALoss
from isda.lab.networks import segmentation
from memory import peak_bytes

RESULT = Path(__file__).parent / "results" / "segmentation.md"
BATCH, CLASSES, FEATURES, IGNORED, STRENGTH = 8, 19, 512, 255, 7.5
CROP, SIDE = 769, 97
AUXILIARY_WEIGHT = 0.4
CRITERIA: dict[str, dict[str, Any] | None] = {
    "cross-entropy": None,
    "isda, diagonal": {"covariance": "diagonal"},
    "isda, full": {"covariance": "full"},
    "isda, full, tilted": {"covariance": "full", "bound": "tilted"},
}


def labels(batch: int, size: int) -> Tensor:
    """Regions of frequent and rare classes, as streets have them; one in twenty has none."""
    shares = torch.arange(1, CLASSES + 1).float().pow(-1.5)
    regions = torch.multinomial(shares, batch * 13 * 13, replacement=True).view(batch, 1, 13, 13)
    regions[torch.rand(regions.shape) < 0.05] = IGNORED
    return F.interpolate(regions.double(), size=(size, size), mode="nearest").squeeze(1).long()


def make_criterion(name: str) -> ISDALoss | None:
    """ISDA with the settings of that name; None for cross-entropy."""
    settings = CRITERIA[name]
    if settings is None:
        return None
    return ISDALoss(CLASSES, FEATURES, ignore_index=IGNORED, align_corners=True, **settings)


def criterion_step(name: str, size: int) -> Callable[[], None]:
    """Value and gradients of one criterion on the features of a batch, with labels of that size."""
    torch.manual_seed(0)
    features = torch.randn(BATCH, FEATURES, SIDE, SIDE).relu_()
    weight = (torch.randn(CLASSES, FEATURES, 1, 1) / FEATURES**0.5).requires_grad_()
    targets = labels(BATCH, size)
    logits = F.conv2d(features, weight).detach().requires_grad_()
    criterion = make_criterion(name)

    def step() -> None:
        if criterion is None:
            enlarged = logits
            if size != SIDE:
                enlarged = F.interpolate(logits, size=(size, size), mode="bilinear", align_corners=True)
            loss = F.cross_entropy(enlarged, targets, ignore_index=IGNORED)
        else:
            loss = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
        loss.backward()
        logits.grad = weight.grad = None

    return step


def seconds(action: Callable[[], object]) -> float:
    """CPU seconds that an action takes."""
    started = time.process_time()
    action()
    return time.process_time() - started


def extra_peak(name: str) -> int:
    """Bytes by which the peak of this process grows over that of cross-entropy.

    With labels of the features' size: at the size of the image the memory of cross-entropy itself, which comes after
    ISDA has freed its own, would hide what is measured.
    """
    criterion_step("cross-entropy", SIDE)()
    step = criterion_step(name, SIDE)
    before = peak_bytes()
    for _ in range(2):
        step()
    return peak_bytes() - before


def measured_peak(name: str) -> int:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--memory", name]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def network_seconds(crop: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of forward and backward pass for one image, and of the optimiser's step.

    Batch normalisation is frozen: one image is too few for it. That makes the step cheaper, and ISDA's share larger.
    """
    torch.manual_seed(0)
    network = segmentation.freeze_batch_norm(segmentation.create("pspnet-resnet-101", CLASSES)).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    images, targets = torch.randn(1, 3, crop, crop), labels(1, crop)

    def loss_of(logits: Tensor | None) -> Tensor:
        assert logits is not None
        enlarged = F.interpolate(logits, size=(crop, crop), mode="bilinear", align_corners=True)
        return F.cross_entropy(enlarged, targets, ignore_index=IGNORED)

    def passes() -> None:
        outputs = network.outputs(images)
        (loss_of(outputs.logits) + AUXILIARY_WEIGHT * loss_of(outputs.auxiliary_logits)).backward()

    times = [(seconds(passes), seconds(optimiser.step), seconds(optimiser.zero_grad)) for _ in range(rounds + 1)]
    # The first round allocates.
    return statistics.median(one[0] for one in times[1:]), statistics.median(sum(one[1:]) for one in times[1:])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--crop", type=int, default=CROP, help="of the network's step; scaled to 769 by area")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", choices=list(CRITERIA), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print(extra_peak(arguments.memory))
        return
    times: dict[str, list[float]] = {name: [] for name in CRITERIA}
    steps = {name: criterion_step(name, CROP) for name in CRITERIA}
    for _ in range(arguments.rounds + 1):
        for name, step in steps.items():
            times[name].append(seconds(step))
    steps.clear()
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    passes, optimiser = network_seconds(arguments.crop, arguments.rounds)
    step_seconds = BATCH * passes * (CROP / arguments.crop) ** 2 + optimiser
    lines = [
        "# What ISDA adds to a step of PSPNet, ResNet-101",
        "",
        f"Generated by `python benchmarks/segmentation.py --crop {arguments.crop} --rounds {arguments.rounds}`, torch "
        f"{torch.__version__.split('+')[0]}; one CPU thread, medians of CPU seconds. Features {BATCH} x {FEATURES} x "
        f"{SIDE} x {SIDE}, {CLASSES} classes, labels {CROP} x {CROP}.",
        "",
        f"The network's step (both heads with cross-entropy, backward, SGD; frozen batch normalisation) takes "
        f"{passes:.1f} s for one image of {arguments.crop} x {arguments.crop}, which makes {step_seconds:.0f} s for "
        f"{BATCH} of {CROP} x {CROP}. Added time: the criterion's minus cross-entropy's, values and gradients, "
        "with the statistics. Added memory: peak over that of cross-entropy, labels of the features' size, one head.",
        "",
        "| criterion | seconds | added, one head | of the step | both heads | added memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for name in CRITERIA:
        if name == "cross-entropy":
            lines.append(f"| {name} | {median[name]:.2f} | | | | |")
            continue
        added = median[name] - median["cross-entropy"]
        shares = " | ".join(f"{100 * heads * added / step_seconds:.2f}%" for heads in (1, 2))
        lines.append(f"| {name} | {median[name]:.2f} | {added:.2f} | {shares} | {measured_peak(name) / 1e6:.0f} |")
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
