"""The picture at the top of README.md and of the site: `python website/picture.py` writes docs/isda.png.

A small network is trained with ISDA on the digits of scikit-learn. Left: the features of three classes, and what ISDA
adds to one sample of one of them, the normal distribution N(a, λΣ) with the covariance that the criterion estimated.
Right: images of that class, ordered along the leading eigenvectors of its covariance.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from isda import ISDALoss

__all__ = ["PICTURE", "draw"]

PICTURE = Path(__file__).parent.parent / "docs" / "isda.png"
SHOWN, NEIGHBOURS = 7, (1, 9)
EPOCHS, BATCH, STRENGTH = 40, 64, 0.5
STEPS = (-2.0, -1.2, -0.5, 0.0, 0.5, 1.2, 2.0)
"""Standard deviations along a direction."""
COLOURS = {7: "#0b6fb8", 1: "#9a9a9a", 9: "#c9b458"}
RED = "#d1495b"
Array = NDArray[np.float64]


def trained(images: Tensor, labels: Tensor) -> tuple[nn.Sequential, ISDALoss]:
    """A network and its criterion, which holds the covariance of each class's features."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * (len(images) // BATCH)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    criterion = ISDALoss.attach(model, lambda_0=STRENGTH, total_steps=steps, decay=0.98)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            loss = criterion(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return model.eval(), criterion


def eigenvectors(covariance: Array) -> tuple[Array, Array]:
    """Variances and directions as columns, the largest first."""
    values, vectors = np.linalg.eigh(covariance)
    return values[::-1], vectors[:, ::-1]


def plane(direction: Array, means: dict[int, Array]) -> Array:
    """Two orthonormal columns: the class's leading direction, and the one that leads away from the other classes."""
    others = np.mean([means[label] for label in NEIGHBOURS], axis=0)
    away = means[SHOWN] - others
    away -= (away @ direction) * direction
    return np.stack([direction, away / np.linalg.norm(away)], axis=1)


def features_panel(axes: Axes, features: Array, labels: Array, covariance: Array) -> None:
    """Three classes, one sample and the distribution of its augmentations, in a plane with the leading direction."""
    means = {label: features[labels == label].mean(0) for label in (*NEIGHBOURS, SHOWN)}
    basis = plane(eigenvectors(covariance)[1][:, 0], means)
    flat = features @ basis
    for label in (*NEIGHBOURS, SHOWN):
        own = flat[labels == label]
        axes.scatter(
            own[:, 0], own[:, 1], s=9, alpha=0.45, linewidths=0, color=COLOURS[label], label=f"images of class {label}"
        )
    own = flat[labels == SHOWN]
    aside = own.mean(0) + own.std(0) * (-0.9, -0.4)
    sample = own[np.argmin(np.linalg.norm(own - aside, axis=1))]
    projected = STRENGTH * basis.T @ covariance @ basis
    drawn = np.random.default_rng(0).multivariate_normal(sample, projected, size=60)
    axes.scatter(drawn[:, 0], drawn[:, 1], s=15, marker="x", linewidths=0.9, color=RED, label="drawn from N(a, λΣ)")
    circle = np.linspace(0, 2 * np.pi, 100)
    root = np.linalg.cholesky(projected)
    for width in (1, 2):
        ring = sample[:, None] + width * root @ np.stack([np.cos(circle), np.sin(circle)])
        axes.plot(*ring, color=RED, linewidth=1.4)
    axes.scatter(
        sample[0], sample[1], s=80, color=RED, edgecolors="white", linewidths=1.5, zorder=5, label="one image a"
    )
    axes.set(xticks=[], yticks=[], xlabel="direction 1 of class 7 →", ylabel="away from the other classes →")
    axes.set_aspect("equal", "datalim")
    axes.legend(loc="lower left", frameon=False, fontsize=9, handletextpad=0.3)
    axes.margins(x=0.05, y=0.12)
    _pale(axes)
    axes.set_title(f"ISDA augments along the covariance Σ of class {SHOWN}", fontsize=11)


def images_panel(part: SubFigure, images: Array, features: Array, covariance: Array, count: int = 3) -> None:
    """Images of the class along its leading directions: near the step, and near the mean in the others."""
    values, vectors = eigenvectors(covariance)
    centred = features - features.mean(0)
    grid = part.subplots(count, len(STEPS))
    for direction in range(count):
        along = centred @ vectors[:, direction] / np.sqrt(values[direction])
        aside = np.linalg.norm(centred - np.outer(centred @ vectors[:, direction], vectors[:, direction]), axis=1)
        aside = aside / np.median(aside)
        taken: list[int] = []
        for column, step in enumerate(STEPS):
            order = np.argsort((along - step) ** 2 + 0.15 * aside**2)
            row = next(int(index) for index in order if index not in taken)
            taken.append(row)
            axes = grid[direction, column]
            axes.imshow(images[row], cmap="gray_r", interpolation="lanczos", aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            _pale(axes)
            if direction == count - 1:
                axes.set_xlabel(f"{step:+g}σ" if step else "mean", fontsize=9)
            if column == 0:
                axes.set_ylabel(f"direction {direction + 1}", fontsize=9)
    part.suptitle(f"Real images of class {SHOWN} along the leading directions of Σ", fontsize=11, y=0.985)


def _pale(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_color("#cccccc")


def draw() -> Figure:
    """Train, and draw both panels."""
    data = load_digits()
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    torch.set_num_threads(1)
    model, criterion = trained(images, labels)
    with torch.no_grad():
        features = model[:-1](images).double().numpy()
    covariance = criterion.covariance.covariance(SHOWN).double().numpy()
    with mpl.rc_context({"font.family": "DejaVu Sans", "figure.facecolor": "white"}):
        figure = plt.figure(figsize=(11.5, 4.1), dpi=110)
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.45), wspace=0.02)
        axes = left.subplots()
        left.subplots_adjust(left=0.05, right=0.98, top=0.91, bottom=0.08)
        features_panel(axes, features, data.target, covariance)
        own = data.target == SHOWN
        images_panel(right, data.images[own], features[own], covariance)
        right.subplots_adjust(left=0.06, right=0.985, top=0.91, bottom=0.08, wspace=0.06, hspace=0.06)
    return figure


if __name__ == "__main__":
    draw().savefig(PICTURE)
