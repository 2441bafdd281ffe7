"""Where the gain lives: capacity against data, number of classes, length of training. Part A of benchmarks/plan.md.

    python benchmarks/capacity.py --data-root ROOT [--parts a b] [--seeds 0 1 2] [--runs runs/capacity] [--list]

ROOT holds cifar10.npz, cifar100.npz and svhn_small.npz (x_train, y_train, x_test, y_test). A finished run is a row of
results/capacity.csv with its curve in results/capacity_curves.csv, and is not made again; an interrupted one continues
from its latest checkpoint. A run is one thread; start the command twice, with --lane 0/2 and 1/2, for two of them.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import ExplicitLoss, ISDALoss
from isda.lab.methods.criteria import CenterLoss, FocalLoss, LqLoss
from isda.lab.networks import create

RESULTS = Path(__file__).parent / "results"
HELD_OUT_FRACTION = 0.1
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Setting:
    """What is trained on what; the defaults are the pilot's setting."""

    data: str = "cifar100"
    images: int = 10_000
    epochs: int = 60
    network: str = "fast-cnn"
    width: float = 1.0
    augment: str = "crop-flip"
    wrong: float = 0.0
    dropout: float = 0.0

    @property
    def name(self) -> str:
        """The fields that differ from the pilot's setting."""
        pilot = Setting()
        changed = [f"{key}={value}" for key, value in vars(self).items() if value != getattr(pilot, key)]
        return " ".join(changed) or "pilot"


PILOT = Setting()
PLAIN = "cross-entropy"


def isda(*strengths: float, **options: Any) -> list[str]:
    """Method strings of ISDA."""
    extra = "".join(f",{key}={value}" for key, value in options.items())
    return [f"isda:lambda_0={strength:g}{extra}" for strength in strengths]


FEW, THREE = [PLAIN, *isda(0.5, 1)], ["covariance=identity", "covariance=diagonal", "covariance=shared"]
PARTS: dict[str, list[tuple[Setting, list[str]]]] = {
    "a": [(PILOT, [PLAIN, *isda(0.25, 0.5, 1, 2, 4), *isda(1, 4, bound="tilted")])],
    "b": [
        (replace(PILOT, images=50_000, epochs=30), [PLAIN, *isda(0.1, 0.25, 0.5)]),
        (replace(PILOT, images=50_000, epochs=90), [PLAIN, *isda(0.25, 0.5)]),
    ],
    "c": [
        (replace(PILOT, **change), FEW)
        for change in (
            {"width": 0.5},
            {"epochs": 20},
            {"images": 3000},
            {"data": "cifar10"},
            {"augment": "none"},
        )
    ],
    "d": [(replace(PILOT, network="resnet-14"), FEW), (replace(PILOT, network="wide-resnet-10-2"), FEW)],
    "e": [(replace(PILOT, augment="cutout"), FEW), (replace(PILOT, augment="autoaugment"), FEW)],
    "f": [
        (
            PILOT,
            [
                *(
                    f"isda:lambda_0={s:g},covariance={kind}"
                    for kind in ("diagonal", "shared", "within")
                    for s in (0.5, 1)
                ),
                *(f"isda:lambda_0={s:g},covariance=identity" for s in (0.02, 0.1, 0.5)),
                "isda:lambda_0=1,covariance=low_rank,rank=16",
                "isda:lambda_0=1,constant=1",
                *(f"explicit:lambda_0=1,samples={m}" for m in (1, 5, 20)),
            ],
        )
    ],
    "g": [
        (PILOT, [f"label-smoothing:smoothing={s}" for s in (0.05, 0.1, 0.2, 0.4)]),
        (PILOT, [f"mixup:alpha={a}" for a in (0.1, 0.2, 0.5, 1)]),
        *((replace(PILOT, dropout=rate), [PLAIN]) for rate in (0.1, 0.2, 0.4)),
        (PILOT, [f"focal:gamma={g}" for g in (0.5, 1, 2)]),
        (PILOT, [f"lq:q={q}" for q in (0.1, 0.3, 0.6)]),
        (PILOT, [f"center:weight={w}" for w in (0.001, 0.01, 0.1)]),
    ],
    "h": [
        (
            Setting("cifar10", 3000, 60, augment=augment, wrong=wrong),
            [PLAIN, *isda(2, 5, 10), "mixup:alpha=1", "mixup:alpha=1,lambda_0=5"],
        )
        for wrong in (0.2, 0.4)
        for augment in ("none", "crop-flip")
    ],
}
"""Settings and methods of each part; strengths of the methods of part g are chosen on held-out images."""


class Images:
    """Training, held-out and test images of a setting; the seed decides which of the training images are taken."""

    def __init__(self, setting: Setting, seed: int, root: Path) -> None:
        with np.load(root / f"{setting.data}.npz") as file:
            pixels = {name: torch.as_tensor(file[name]).permute(0, 3, 1, 2) for name in ("x_train", "x_test")}
            labels = {name: torch.as_tensor(file[name]) for name in ("y_train", "y_test")}
        self.classes = int(labels["y_train"].max()) + 1
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(labels["y_train"]), generator=generator)[: setting.images]
        held = round(HELD_OUT_FRACTION * len(order))
        self.x, self.y = pixels["x_train"][order[held:]], labels["y_train"][order[held:]]
        if setting.wrong:
            count = round(setting.wrong * len(self.y))
            self.y[:count] += torch.randint(1, self.classes, (count,), generator=generator)
            self.y %= self.classes
        colours = self.x.float().div(255).permute(1, 0, 2, 3).flatten(1)
        self.mean, self.std = colours.mean(1).view(3, 1, 1), colours.std(1).view(3, 1, 1)
        self.held_out = pixels["x_train"][order[:held]], labels["y_train"][order[:held]]
        self.test = pixels["x_test"], labels["y_test"]

    def normalised(self, images: Tensor) -> Tensor:
        """Channels with mean 0 and variance 1, in the memory format that is fastest on a CPU."""
        return ((images.float() / 255 - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def crop_flip(images: Tensor) -> Tensor:
    """Windows of the images padded by 4 reflected pixels, half of them mirrored; each image has its own draw."""
    n, _, height, width = images.shape
    padded = F.pad(images.float(), (4, 4, 4, 4), mode="reflect").to(images.dtype)
    top, left, mirrored = torch.randint(9, (n, 1)), torch.randint(9, (n, 1)), torch.rand(n, 1) < 0.5
    rows, columns = top + torch.arange(height), torch.arange(width)
    columns = left + torch.where(mirrored, columns.flip(0), columns)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cutout(images: Tensor, length: int = 16) -> Tensor:
    """A square of zeros, at a centre drawn anywhere in each normalised image."""
    n, _, height, width = images.shape
    outside = []
    for size in (height, width):
        centre = torch.randint(size, (n, 1))
        outside.append(((torch.arange(size) - centre + length // 2) // length) != 0)
    return images * (outside[0].unsqueeze(2) | outside[1].unsqueeze(1)).unsqueeze(1)


def augmented(images: Tensor, setting: Setting, data: Images) -> Tensor:
    """Normalised training images under the augmentation of the setting."""
    if setting.augment == "none":
        return data.normalised(images)
    images = crop_flip(images)
    if setting.augment == "autoaugment":
        from torchvision.transforms import v2

        policy = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128)
        images = torch.stack([policy(image) for image in images])
    images = data.normalised(images)
    return cutout(images) if setting.augment in ("cutout", "autoaugment") else images


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def make_loss(method: str, network: Any, classes: int, total_steps: int) -> tuple[nn.Module, Loss]:
    """The criterion of a method, and how a batch's loss is computed with it."""
    name, _, words = method.partition(":")
    options: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        key, _, value = word.partition("=")
        options[key] = value if value.isidentifier() else float(value) if "." in value else int(value)
    criterion: nn.Module
    if name == "isda":
        constant = options.pop("constant", None) and options["lambda_0"]
        options.setdefault("covariance", "full")
        attached = ISDALoss.attach(network, total_steps=total_steps, **options)
        return attached, lambda network, x, y: attached(network(x), y, strength=constant)
    if name == "explicit":
        drawn = ExplicitLoss.attach(network, total_steps=total_steps, covariance="full", **options)
        return drawn, lambda network, x, y: drawn(network(x), y)
    if name == "mixup":
        alpha, strength = options["alpha"], options.get("lambda_0", 0)
        criterion = (
            ISDALoss.attach(network, strength, total_steps, covariance="full") if strength else nn.CrossEntropyLoss()
        )

        def mixed(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            share = float(torch.distributions.Beta(alpha, alpha).sample())
            order = torch.randperm(len(x))
            share = max(share, 1 - share)  # the larger part's labels are those of the statistics
            logits = network(share * x + (1 - share) * x[order])
            loss: Tensor = share * criterion(logits, y) + (1 - share) * criterion(logits, y[order])
            return loss

        return criterion, mixed
    if name == "center":
        center = CenterLoss(classes, network.feature_dim, **options)

        def centred(network: Any, x: Tensor, y: Tensor) -> Tensor:
            features = network.features(x)
            loss: Tensor = center(network.classifier(features), y, features=features)
            return loss

        return center, centred
    made = {"focal": FocalLoss, "lq": LqLoss}
    if name in made:
        criterion = made[name](**options)
    else:
        criterion = nn.CrossEntropyLoss(label_smoothing=options.get("smoothing", 0.0))
    return criterion, lambda network, x, y: criterion(network(x), y)


@torch.no_grad()
def predict(network: nn.Module, data: Images, part: tuple[Tensor, Tensor]) -> Tensor:
    """Logits of images without augmentation, in eval mode."""
    network.eval()
    logits = torch.cat([network(data.normalised(images)) for images in part[0].split(500)])
    network.train()
    return logits


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest negative log-likelihood, on a grid of steps of 2%."""
    grid = [1.02**k for k in range(-60, 161)]
    return min(grid, key=lambda t: float(F.cross_entropy(logits / t, labels)))


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error in percent, with bins of equal width."""
    confidence, predicted = logits.softmax(1).max(1)
    right = (predicted == labels).double()
    index = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, right - confidence.double())
    return float(100 * gaps.abs().sum() / len(labels))


def percent_wrong(logits: Tensor, labels: Tensor) -> float:
    """The error in percent."""
    return 100 * float((logits.argmax(1) != labels).double().mean())


def train(setting: Setting, method: str, seed: int, root: Path, folder: Path) -> tuple[dict[str, float], list[Any]]:
    """One run: SGD with Nesterov momentum 0.9, weight decay 5e-4, batch 64, one-cycle learning rate up to 0.1."""
    data = Images(setting, seed, root)
    torch.manual_seed(seed)
    options = {"dropout": setting.dropout} if setting.dropout else {}
    options |= {"width": setting.width} if setting.width != 1 else {}
    network = create(setting.network, num_classes=data.classes, **options).to(memory_format=torch.channels_last).train()
    steps = len(data.y) // 64
    criterion, loss_of = make_loss(method, network, data.classes, steps * setting.epochs)
    optimizer = torch.optim.SGD(
        [*network.parameters(), *criterion.parameters()], 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, setting.epochs * steps, cycle_momentum=False)
    parts: dict[str, Any] = {"network": network, "criterion": criterion, "optimizer": optimizer, "schedule": schedule}
    checkpoint, epoch, seconds, curve = folder / "checkpoint.pt", 0, 0.0, []
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        epoch, seconds, curve = saved["epoch"], saved["seconds"], saved["curve"]
    while epoch < setting.epochs:
        started = time.process_time()
        torch.manual_seed(1000 * seed + epoch)
        total = 0.0
        for index in torch.randperm(len(data.y))[: 64 * steps].split(64):
            loss = loss_of(network, augmented(data.x[index], setting, data), data.y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss)
        epoch += 1
        seconds += time.process_time() - started
        if not np.isfinite(total):
            raise FloatingPointError(f"{setting.name}, {method}, seed {seed}: the loss is not finite in epoch {epoch}")
        if epoch % 5 == 0 or epoch == setting.epochs:
            held = predict(network, data, data.held_out)
            test = predict(network, data, (data.test[0][:5000], data.test[1][:5000]))
            curve.append(
                [
                    epoch,
                    total / steps,
                    percent_wrong(held, data.held_out[1]),
                    float(F.cross_entropy(held, data.held_out[1])),
                    percent_wrong(test, data.test[1][:5000]),
                    float(F.cross_entropy(test, data.test[1][:5000])),
                ]
            )
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "epoch": epoch, "seconds": seconds, "curve": curve}, folder / "part.pt")
        os.replace(folder / "part.pt", checkpoint)
    criterion.eval()
    seen = data.x[:2000], data.y[:2000]
    logits = {"train": predict(network, data, seen), "held": predict(network, data, data.held_out)}
    test = predict(network, data, data.test)
    temperature = best_temperature(logits["held"], data.held_out[1])
    figures = {
        "error": percent_wrong(test, data.test[1]),
        "nll": float(F.cross_entropy(test, data.test[1])),
        "scaled_nll": float(F.cross_entropy(test / temperature, data.test[1])),
        "calibration": calibration_error(test, data.test[1]),
        "temperature": temperature,
        "held_error": percent_wrong(logits["held"], data.held_out[1]),
        "held_nll": float(F.cross_entropy(logits["held"], data.held_out[1])),
        "train_error": percent_wrong(logits["train"], seen[1]),
        "train_nll": float(F.cross_entropy(logits["train"], seen[1])),
        "seconds": seconds,
    }
    torch.save(network.state_dict(), folder / "weights.pt")
    return figures, curve


FIGURES = (
    *("error", "nll", "scaled_nll", "calibration", "temperature"),
    *("held_error", "held_nll", "train_error", "train_nll", "seconds"),
)
CURVE = ("epoch", "train_loss", "held_error", "held_nll", "test_error_5000", "test_nll_5000")


def append(path: Path, columns: tuple[str, ...], rows: list[list[Any]]) -> None:
    """Add rows to a table, with its header where there is no table yet."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows] if new else rows)


def planned(parts: list[str], seeds: list[int]) -> Iterator[tuple[str, Setting, str, int]]:
    """The runs in the order of the plan: part by part, seed by seed; runs of two parts are made once."""
    for part in parts:
        for seed in seeds:
            for setting, methods in PARTS[part]:
                for method in methods:
                    yield part, setting, method, seed


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/capacity"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=[0, 1, 2])
    parser.add_argument("--lane", default="0/1", help="I/N: every N-th run, from the I-th on")
    parser.add_argument("--list", action="store_true", help="print the runs that are missing, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table, curves = arguments.results / "capacity.csv", arguments.results / "capacity_curves.csv"
    lane, lanes = map(int, arguments.lane.split("/"))
    for number, (part, setting, method, seed) in enumerate(planned(arguments.parts, arguments.seeds)):
        rows = list(csv.DictReader(table.open(encoding="utf-8"))) if table.exists() else []
        key = [setting.name, method, seed]
        done = any([row["setting"], row["method"], row["seed"]] == [*key[:2], str(seed)] for row in rows)
        if done or number % lanes != lane:
            continue
        print(time.strftime("%H:%M:%S"), part, *key, flush=True)
        if arguments.list:
            continue
        words = "-".join(map(str, key)).replace(" ", "_").replace(":", "-")
        figures, curve = train(setting, method, seed, arguments.data_root, arguments.runs / words)
        append(curves, ("setting", "method", "seed", *CURVE), [[*key, *row] for row in curve])
        append(table, ("setting", "method", "seed", *FIGURES), [[*key, *(figures[name] for name in FIGURES)]])
        print(time.strftime("%H:%M:%S"), *(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
