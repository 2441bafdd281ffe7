"""Small convex problems, and the same problems by loops over samples and classes."""

from __future__ import annotations

import numpy as np
import torch

import oracles
from isda.estimator.covariances import ClassRows, row_covariances
from isda.estimator.objective import ConvexObjective

NAMES = ("within", "shrunk", "full", "diagonal", "shared", "identity")
A = 4


def problem(num_classes=3, n=24, *, seed=0, weighted=False):
    """Inputs, labels, sample weights and weights of the losses; every class occurs."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(np.concatenate([np.arange(num_classes), rng.integers(num_classes, size=n - num_classes)]))
    mixing = torch.from_numpy(rng.normal(size=(A, A)))
    inputs = torch.from_numpy(rng.normal(size=(n, A))) @ mixing + labels.unsqueeze(1)
    counts = torch.from_numpy(rng.integers(1, 4, n).astype(float)) if weighted else torch.ones(n, dtype=torch.float64)
    factors = torch.from_numpy(rng.uniform(0.5, 2, num_classes)) if weighted else torch.ones(num_classes).double()
    return inputs, labels, counts, counts * factors[labels]


def rows_of(inputs, labels, counts, weights, num_classes):
    return ClassRows.of(inputs, labels, num_classes, weights=weights, counts=counts)


def objective(name, bound, num_classes=3, *, strength=1.3, penalty=0.1, weighted=True, seed=0):
    rows = rows_of(*problem(num_classes, seed=seed, weighted=weighted), num_classes)
    return ConvexObjective(rows, row_covariances(name, rows), strength=strength, penalty=penalty, bound=bound)


def repeated(inputs, labels, counts, weights):
    """Every row as often as it counts, each with its share of the weight."""
    index = torch.repeat_interleave(torch.arange(len(labels)), counts.long())
    return inputs[index], labels[index], (weights / counts)[index]


def matrices_of(name, inputs, labels, num_classes):
    """(C, A, A) covariances by this name, from the oracles."""
    if name == "identity":
        return torch.eye(A, dtype=torch.float64).expand(num_classes, A, A)
    if name == "shared":
        return oracles.shared_covariance(inputs, labels, num_classes)
    if name == "within":
        return oracles.within_covariance(inputs, labels, num_classes)
    own = oracles.batch_covariance(inputs, labels, num_classes)
    if name == "shrunk":
        return oracles.shrunk_covariance(own, torch.bincount(labels, minlength=num_classes).tolist())
    return torch.diag_embed(own.diagonal(dim1=1, dim2=2)) if name == "diagonal" else own


def both_rows(parameters):
    """Weights (C, A) and intercepts (C,) of all classes; the first of two is zero."""
    if len(parameters) == 1:
        parameters = torch.cat([torch.zeros_like(parameters), parameters])
    return parameters[:, :-1], parameters[:, -1]


def least_tilted_value(logits, weight, covariance, strength):
    """min_t F(t) of one sample by plain gradient descent on the logits of t."""
    free = torch.zeros(len(logits), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = oracles.tilted_value(logits, torch.softmax(free, 0), weight, covariance, strength)
        value.backward()
        return value

    optimiser.step(closure)
    return float(closure().detach())
