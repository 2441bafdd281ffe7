"""Brute-force oracles of the losses, written from the equations: loops over samples, classes and pixels, float64.

Nothing here calls isda, except ``library_tilt``, which asks it for the tilts at which the tilted oracles are evaluated.
"""

from __future__ import annotations

import math

import torch

from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from oracles import pooled_within, shrunk_covariance

COVARIANCES = ("full", "diagonal", "low_rank", "shared", "within", "shrunk", "identity", "learned")


def normal(*shape, seed, dtype=torch.float64):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def class_covariances(kind, features, labels, num_classes, factor=None):
    """Sigma_c of every class from all the features (rows, A) seen so far, with correction 0."""
    dim = features.shape[1]

    def covariance_of(rows):
        if len(rows) == 0:
            return torch.zeros(dim, dim, dtype=torch.float64)
        mean = sum(rows) / len(rows)
        return sum(torch.outer(row - mean, row - mean) for row in rows) / len(rows)

    if kind == "identity":
        return [torch.eye(dim, dtype=torch.float64)] * num_classes
    if kind == "learned":
        return [factor[c] @ factor[c].t() for c in range(num_classes)]
    if kind == "shared":
        return [covariance_of(list(features))] * num_classes
    matrices = [
        covariance_of([row for row, label in zip(features, labels, strict=True) if label == c])
        for c in range(num_classes)
    ]
    if kind in ("within", "shrunk"):
        counts = [sum(int(label) == c for label in labels) for c in range(num_classes)]
        return list((pooled_within if kind == "within" else shrunk_covariance)(torch.stack(matrices), counts))
    return [torch.diag(torch.diag(matrix)) for matrix in matrices] if kind == "diagonal" else matrices


def variance_row(weight, sigma, tilt):
    """(C,) (w_j - wbar)' Sigma (w_j - wbar) with wbar = sum_k tilt_k w_k."""
    centre = sum(share * row for share, row in zip(tilt, weight, strict=True))
    return torch.stack([(row - centre) @ sigma @ (row - centre) for row in weight])


def one_hot(label, num_classes):
    return torch.tensor([1.0 if c == label else 0.0 for c in range(num_classes)], dtype=torch.float64)


def smoothed(distribution, smoothing):
    return [share * (1 - smoothing) + smoothing / len(distribution) for share in distribution]


def log_sum_exp(values):
    return torch.log(sum(torch.exp(value) for value in values))


def row_loss(augmented, plain, target, class_weight=None):
    """sum_c q_c w_c (logsumexp(augmented) - plain_c) for one row."""
    weights = [1.0] * len(plain) if class_weight is None else class_weight
    total = log_sum_exp(augmented)
    return sum(q * w * (total - z) for q, w, z in zip(target, weights, plain, strict=True))


def bound_rows(logits, weight, sigmas, classes, tilts, strength):
    """(rows, C) logits whose logsumexp is F: z_j + lambda/2 (w_j - wbar)' Sigma_y (w_j - wbar), row by row."""
    return torch.stack(
        [
            row + strength / 2 * variance_row(weight, sigmas[int(c)], tilt)
            for row, c, tilt in zip(logits, classes, tilts, strict=True)
        ]
    )


def jensen_tilts(classes, num_classes):
    return torch.stack([one_hot(int(c), num_classes) for c in classes])


def library_tilt(criterion, logits, classes, weight, strength, start=None):
    """The tilts that the library finds; what it finds is judged elsewhere, here it only fixes the point."""
    model = criterion.covariance
    start = jensen_tilts(classes, logits.shape[1]) if start is None else start
    with torch.no_grad():
        tables = quadratic_tables(weight, model, model.groups(classes))
        return find_tilt(logits, tables, start.to(logits.dtype), strength, criterion.tilt_steps)


def rows_of(maps):
    """(N, D, H, W) to (N * H * W, D) by loops; (N, D) stays."""
    if maps.ndim == 2:
        return maps
    n, _, height, width = maps.shape
    return torch.stack([maps[i, :, y, x] for i in range(n) for y in range(height) for x in range(width)])


def maps_of(rows, n, height, width):
    """Undo ``rows_of``."""
    cells = iter(rows)
    images = [torch.stack([torch.stack([next(cells) for _ in range(width)]) for _ in range(height)]) for _ in range(n)]
    return torch.stack(images).permute(0, 3, 1, 2)


def nearest_labels(labels, height, width):
    """(N, height, width) labels picked at floor(i * in / out)."""
    n, rows, columns = labels.shape
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack([labels[i, (y * rows) // height, (x * columns) // width] for x in range(width)])
                    for y in range(height)
                ]
            )
            for i in range(n)
        ]
    )


def _taps(size_in, size_out, align_corners):
    """For each output position the two input positions it mixes and the share of the second."""
    taps = []
    for i in range(size_out):
        if align_corners:
            source = i * (size_in - 1) / (size_out - 1) if size_out > 1 else 0.0
        else:
            source = max(0.0, (i + 0.5) * size_in / size_out - 0.5)
        low = min(math.floor(source), size_in - 1)
        taps.append((low, min(low + 1, size_in - 1), source - low))
    return taps


def bilinear(maps, height, width, align_corners=False):
    """(N, D, height, width) bilinear interpolation, pixel by pixel."""
    lines = [
        maps[:, :, low] * (1 - share) + maps[:, :, high] * share
        for low, high, share in _taps(maps.shape[2], height, align_corners)
    ]
    tall = torch.stack(lines, 2)
    columns = [
        tall[..., low] * (1 - share) + tall[..., high] * share
        for low, high, share in _taps(maps.shape[3], width, align_corners)
    ]
    return torch.stack(columns, 3)


def state_of(module):
    """A copy of the whole state."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same_state(module, before):
    """The state_dict is bit for bit what it was."""
    after = module.state_dict()
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert torch.equal(value, before[name]), f"{name} changed"
