"""How near the tilted search comes to the minimum, and its cost: python benchmarks/tilt.py writes results/tilt.md.

The minimum is found in float64 by long damped Newton steps on all classes and certified by the value of the dual.
Takes a few minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from sklearn.datasets import load_digits
from torch import Tensor, nn

from core import markdown, take_turns
from isda import ISDALoss, bounds
from isda.covariance import Covariance, Groups, create
from steps import Shape, make_step

RESULT = Path(__file__).parent / "results" / "tilt.md"
STRENGTHS = (1.0, 5.0)
SHAPES = (
    Shape("full", 128, 10, 640),
    Shape("full", 128, 100, 64),
    Shape("full", 128, 100, 640),
    Shape("full", 64, 100, 342),
    Shape("diagonal", 128, 1000, 2048),
)
ROWS = 128
BATCHES = 60
DRAWS = 2000


class Rows(NamedTuple):
    """Samples with their classifier and covariances."""

    name: str
    logits: Tensor
    targets: Tensor
    weight: Tensor
    covariance: Covariance


def trained(name: str, inputs: Tensor, targets: Tensor, dim: int, lambda_0: float, kind: str = "full") -> Rows:
    """Held-out rows of a small net, with the covariances of the features that it was trained on."""
    torch.manual_seed(0)
    num_classes, seen = int(targets.max()) + 1, len(inputs) - ROWS
    body = nn.Sequential(nn.Linear(inputs.shape[1], 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim), nn.ReLU())
    head = nn.Linear(dim, num_classes)
    criterion = ISDALoss(num_classes, dim, lambda_0, total_steps=600)
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4)
    for _ in range(600):
        batch = torch.randint(seen, (128,))
        features = body(inputs[batch])
        loss = criterion(head(features), targets[batch], features=features, weight=head.weight)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    covariance = create(kind, num_classes, dim)
    with torch.no_grad():
        covariance.update(body(inputs[:seen]), targets[:seen])
        logits = head(body(inputs[seen:]))
    return Rows(name, logits, targets[seen:], head.weight.detach(), covariance)


def trained_regimes() -> Iterator[Rows]:
    """Nets on scikit-learn's digits and on a hundred Gaussian classes."""
    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = (images[order] / 16).float(), labels[order]
    yield trained("digits, cross-entropy", images, labels, 32, lambda_0=0.0)
    yield trained("digits, ISDA", images, labels, 32, lambda_0=0.5)
    generator = torch.Generator().manual_seed(1)
    classes = torch.randint(100, (10_000 + ROWS,), generator=generator)
    points = 1.3 * torch.randn(100, 32, generator=generator)[classes] + torch.randn(
        len(classes), 32, generator=generator
    )
    yield trained("100 classes, A=64", points, classes, 64, lambda_0=0.0)
    yield trained("100 classes, A=128", points, classes, 128, lambda_0=0.0)
    yield trained("100 classes, diagonal", points, classes, 64, lambda_0=0.0, kind="diagonal")


def hard_batch(seed: int, dtype: torch.dtype) -> tuple[Rows, Rows]:
    """N=128, C=10, A=32, W ~ N(0, 1) and random covariances, in two orders of the features."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(10, 32, generator=generator, dtype=torch.float64)
    factors = torch.randn(10, 32, 64, generator=generator, dtype=torch.float64)
    logits = torch.randn(128, 32, generator=generator, dtype=torch.float64) @ weight.t()
    targets = torch.randint(10, (128,), generator=generator)
    orders = torch.arange(32), torch.randperm(32, generator=generator)

    def rows(order: Tensor) -> Rows:
        covariance = create("full", 10, 32, dtype=dtype)
        matrices = factors[:, order] @ factors[:, order].mT / 64
        covariance.merge(_with_scatter(matrices.to(dtype)))
        return Rows("random, C=10", logits.to(dtype), targets, weight[:, order].to(dtype), covariance)

    return rows(orders[0]), rows(orders[1])


def _with_scatter(matrices: Tensor) -> Covariance:
    """A model with these covariances: two features of every class and direction, at plus and minus its root."""
    num_classes, dim = matrices.shape[:2]
    values, vectors = torch.linalg.eigh(matrices.double())
    roots = (vectors * (dim * values.clamp_min(0)).sqrt().unsqueeze(1)).mT.flatten(0, 1).to(matrices.dtype)
    covariance = create("full", num_classes, dim, dtype=matrices.dtype)
    targets = torch.arange(num_classes).repeat_interleave(dim)
    covariance.update(torch.cat([roots, -roots]), torch.cat([targets, targets]))
    return covariance


def minimum(fixed: Tensor, forms: Tensor) -> Tensor:
    """(N,) min F for c = ``fixed`` (N, C) and K = ``forms`` (N, C, C), as the dual certifies it."""
    identity, lengths = torch.eye(fixed.shape[1], dtype=fixed.dtype), 0.5 ** torch.arange(16, dtype=fixed.dtype)
    tilt = torch.full_like(fixed, 1 / fixed.shape[1])
    for _ in range(400):
        cross = (forms @ tilt.unsqueeze(2)).squeeze(2)
        share = torch.softmax(fixed - cross, 1)
        spread = torch.diag_embed(share) - share.unsqueeze(2) * share.unsqueeze(1)
        step = torch.linalg.solve(identity + spread @ forms, (share - tilt).unsqueeze(2)).squeeze(2)
        change = (forms @ step.unsqueeze(2)).squeeze(2)
        curve = lengths * (step * cross).sum(1, keepdim=True) + lengths**2 / 2 * (step * change).sum(1, keepdim=True)
        trials = (fixed - cross).unsqueeze(1) - lengths.view(-1, 1) * change.unsqueeze(1)
        values = torch.logsumexp(trials, 2) + curve
        tilt = tilt + lengths[values.argmin(1)].unsqueeze(1) * step
        if step.abs().max() < 1e-10:
            break
    cross = (forms @ share.unsqueeze(2)).squeeze(2)
    dual = (share * (fixed - cross / 2)).sum(1) + torch.special.entr(share).sum(1)
    primal = torch.logsumexp(fixed - cross, 1) + (share * cross).sum(1) / 2
    if not (primal - dual).max() < 1e-6:
        raise ArithmeticError("the minimum did not converge")
    return dual


@torch.no_grad()
def gap_row(rows: Rows, strength: float, consistency: bool) -> dict[str, Any]:
    """Bounds, minimum and Monte-Carlo expectation of a problem, and the part of the published gap that is left."""
    labels = rows.logits.argmax(1) if consistency else rows.targets
    start = torch.softmax(rows.logits, 1) if consistency else F.one_hot(labels, rows.logits.shape[1]).to(rows.logits)
    groups = Groups.of(labels, rows.logits.shape[1])
    margins, forms = bounds.margin_forms(rows.weight, rows.covariance, groups, labels)
    variance = bounds.tilted_variance(rows.logits, margins, forms, labels, strength, start)
    subtracted = (start * rows.logits).sum(1).double()
    found = bounds.augmented_logits(rows.logits, variance, strength).logsumexp(1).double() - subtracted
    if consistency:
        published = bounds.consistency(rows.logits, rows.weight, rows.covariance, strength).double()
    else:
        published = bounds.augmented_logits(rows.logits, margins, strength).logsumexp(1).double() - subtracted
    weight = rows.weight.double() - rows.weight.double().mean(0)
    matrices = torch.stack([rows.covariance.covariance(c).double() for c in range(len(weight))])
    tables = (strength * weight @ matrices @ weight.t())[labels]
    least = minimum(rows.logits.double() + tables.diagonal(dim1=1, dim2=2) / 2, tables) - subtracted
    expected = expectation(rows.logits.double(), tables) - subtracted
    return {
        "features": rows.name,
        "loss": "consistency" if consistency else "labelled",
        "λ": f"{strength:g}",
        "published": f"{published.mean():.3f}",
        "tilted": f"{found.mean():.3f}",
        "minimum": f"{least.mean():.3f}",
        "expectation": f"{expected.mean():.3f}",
        "tilted gap / published gap": f"{(found - expected).mean() / (published - expected).mean():.4f}",
        "minimum's gap / published gap": f"{(least - expected).mean() / (published - expected).mean():.4f}",
        "most above published": f"{(found - published).max():.1e}",
    }


def expectation(logits: Tensor, tables: Tensor) -> Tensor:
    """(N,) E[logsumexp(z~)] by antithetic draws of z~ ~ N(z, table)."""
    values, vectors = torch.linalg.eigh(tables)
    roots = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    generator, results = torch.Generator().manual_seed(1), []
    for row, root in zip(logits, roots, strict=True):
        noise = torch.randn(DRAWS, len(row), generator=generator, dtype=row.dtype)
        results.append(torch.logsumexp(row + torch.cat([noise, -noise]) @ root.t(), 1).mean())
    return torch.stack(results)


def moved_row(dtype: torch.dtype) -> dict[str, Any]:
    """How many losses move when the features change places."""
    moves = []
    for seed in range(BATCHES):
        losses = []
        for rows in hard_batch(seed, dtype):
            criterion = ISDALoss(10, 32, covariance=rows.covariance, bound="tilted", reduction="none", dtype=dtype)
            augmented = criterion.augmented_logits(rows.logits, rows.targets, weight=rows.weight, strength=0.4)
            losses.append(augmented.logsumexp(1) - rows.logits.gather(1, rows.targets.unsqueeze(1)).squeeze(1))
        moves.append((losses[0] - losses[1]).abs())
    moved = torch.cat(moves)
    count = f"{int((moved > 1e-3).sum())} of {len(moved)}"
    return {"dtype": str(dtype).removeprefix("torch."), "moved by more than 1e-3": count, "most": f"{moved.max():.1e}"}


def cost_rows(seconds: float) -> list[dict[str, Any]]:
    """Time of a tilted loss step as a multiple of the published bound's."""
    rows = []
    for shape in SHAPES:
        times = take_turns({name: make_step(name, shape) for name in ("jensen", "tilted")}, seconds)
        rows.append({"shape": str(shape), "tilted / jensen": f"{times['tilted'] / times['jensen']:.2f}"})
    return rows


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="per shape, for the cost of a step")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    gaps = []
    for rows in trained_regimes():
        for strength in STRENGTHS:
            gaps += [gap_row(rows, strength, consistency) for consistency in (False, True)]
    gaps.append(gap_row(hard_batch(0, torch.float32)[0], 0.4, consistency=False))
    moved = [moved_row(dtype) for dtype in (torch.float32, torch.float64)]
    text = f"""# The tilted search

Written by `python benchmarks/tilt.py`. CPU, {arguments.threads} threads, torch {torch.__version__.split("+")[0]}.
Means over held-out samples of small trained nets, {ROWS} per row, in nats: the published bound, what
`ISDALoss(bound="tilted")` finds in float32, the minimum over all tilts, which a long search in float64 finds and the
dual certifies, and the expectation itself by {2 * DRAWS} draws. Gaps are distances from the expectation.

{markdown(gaps)}

## Features in another order

Losses of {BATCHES} batches of 128 samples, C=10, A=32, W ~ N(0, 1), random covariances, λ=0.4, when the features change
places.

{markdown(moved)}

## Cost of a loss step

Logits, statistics, forward and backward.

{markdown(cost_rows(arguments.seconds))}
"""
    RESULT.write_text(text, encoding="utf-8")
    Console().print(text)


if __name__ == "__main__":
    main()
