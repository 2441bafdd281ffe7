"""Cases of the loss for several labels per sample, and its oracle: loops over samples and labels, float64."""

from __future__ import annotations

import math

import torch
from loss_oracles import normal
from torch import nn

from isda import ISDABCELoss

N, K, A, LAMBDA = 7, 3, 4, 0.6
BOUNDS = ("jensen", "exact")
COVARIANCES = ("full", "diagonal", "identity", "learned", "low_rank", "shared")
PRESENT, LABEL_WEIGHTS = torch.tensor([2.0, 0.5, 3.0]), torch.tensor([0.3, 1.0, 1.7])
NAN = math.nan


def criterion_for(**settings):
    return ISDABCELoss(K, A, **{"lambda_0": LAMBDA, "schedule": "constant", "dtype": torch.float64, **settings})


def sample(seed=1, dtype=torch.float64, pixels=()):
    """Features, weights and hard labels."""
    features, weight = normal(N, A, *pixels, seed=seed, dtype=dtype), normal(K, A, seed=seed + 1, dtype=dtype)
    targets = (normal(N, K, *pixels, seed=seed + 2) > 0.4).to(dtype)
    return features, weight, targets


def logits_of(features, weight):
    return torch.einsum("na...,ka->nk...", features, weight)


def small_model(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, A), nn.Tanh(), nn.Linear(A, K)).to(dtype)


# -- oracle ------------------------------------------------------------------------------------------------------------


def logistic(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def entry(bound, z, q, variance, strength, present=1.0, weight=1.0):
    """The loss of one label of one sample."""
    if bound == "jensen":
        added = strength / 2 * variance
        return weight * (present * q * logistic(added - z) + (1 - q) * logistic(added + z))
    noise = torch.arange(-900, 901, dtype=torch.float64) / 100
    density = 0.01 * torch.exp(-noise.square() / 2) / math.sqrt(2 * math.pi)
    moved = z + (strength * variance).sqrt() * noise
    return weight * (density * (present * q * logistic(-moved) + (1 - q) * logistic(moved))).sum()


def naive(bound, logits, targets, weight, sigma, strength, present=(1.0,) * K, label_weight=(1.0,) * K):
    """(N, K) losses, one by one."""
    variances = [w @ sigma @ w for w in weight]
    return torch.stack(
        [
            torch.stack(
                [entry(bound, row[k], q[k], variances[k], strength, present[k], label_weight[k]) for k in range(K)]
            )
            for row, q in zip(logits, targets, strict=True)
        ]
    )
