"""FID, KID and diversity against scipy and against loops over all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from isda.lab.tasks.gan.evaluation import (
    JudgeOutputs,
    compare_features,
    diversity_by_class,
    frechet_distance,
    kernel_distance,
    spread_by_class,
)


def features(count, dimensions, seed):
    chance = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, dimensions, dtype=torch.float64, generator=chance)
    return rows @ torch.randn(dimensions, dimensions, dtype=torch.float64, generator=chance) + seed


@pytest.mark.parametrize(("count", "dimensions"), [(200, 5), (60, 17), (12, 20)])
def test_frechet_distance_is_that_of_a_matrix_square_root(count, dimensions):
    """The last case has covariances without full rank."""
    x, y = features(count, dimensions, 0), features(count + 3, dimensions, 1)
    root = sqrtm(np.cov(x.numpy().T) @ np.cov(y.numpy().T))
    expected = float((x.mean(0) - y.mean(0)).square().sum())
    expected += np.trace(np.cov(x.numpy().T) + np.cov(y.numpy().T) - 2 * root.real)
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-5)


def test_frechet_distance_knows_its_limits():
    x = features(100, 6, 0)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(x, x + 2) == pytest.approx(24, rel=1e-9)
    # Covariances S and 4 S: tr(S + 4 S - 2 (4 S S)^(1/2)) = tr(S).
    centred = x - x.mean(0)
    assert frechet_distance(centred, 2 * centred) == pytest.approx(float(centred.T.cov().trace()), rel=1e-9)
    assert frechet_distance(x, features(80, 6, 1)) == pytest.approx(frechet_distance(features(80, 6, 1), x), rel=1e-9)


def test_kernel_distance_is_a_loop_over_pairs(monkeypatch):
    monkeypatch.setattr("isda.lab.tasks.gan.evaluation.ROWS_AT_ONCE", 4)
    x, y = features(9, 3, 0), features(7, 3, 1)

    def kernel(a, b):
        return (float(a @ b) / 3 + 1) ** 3

    expected = sum(kernel(a, b) for a, b in itertools.permutations(x, 2)) / (9 * 8)
    expected += sum(kernel(a, b) for a, b in itertools.permutations(y, 2)) / (7 * 6)
    expected -= 2 * sum(kernel(a, b) for a, b in itertools.product(x, y)) / (9 * 7)
    assert kernel_distance(x, y) == pytest.approx(expected, rel=1e-10)


def test_kernel_distance_is_unbiased():
    """Halves of one sample: the mean over many of them is zero within four standard errors."""
    values = []
    for seed in range(200):
        rows = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values.append(kernel_distance(rows[:20], rows[20:]))
    values = np.array(values)
    assert abs(values.mean()) < 4 * values.std() / len(values) ** 0.5


def test_diversity_is_a_loop_over_pairs():
    rows, labels = features(12, 3, 0), torch.tensor([0, 1, 2] * 4)
    for label in range(3):
        pairs = list(itertools.combinations(rows[labels == label], 2))
        expected = sum(float((a - b).square().sum().sqrt()) for a, b in pairs) / len(pairs)
        assert spread_by_class(rows, labels, 3)[label] == pytest.approx(expected, rel=1e-12)
    # Images half as far apart, around any mean.
    assert diversity_by_class(rows, labels, rows / 2 + 5, labels, 3) == pytest.approx([0.5] * 3)
    # A mode that is the same image always, and a class that is not there.
    same = torch.ones(4, 3, dtype=torch.float64)
    assert diversity_by_class(rows, labels, same, torch.tensor([0, 0, 1, 1]), 3) == pytest.approx([0.0, 0.0, None])


def test_all_figures_come_from_what_a_judge_saw():
    real, labels = features(12, 3, 0), torch.tensor([0, 1] * 6)
    seen = JudgeOutputs(real, labels)
    made = JudgeOutputs(real + 1, torch.tensor([0, 1] * 3 + [0, 0] * 3))
    measured = compare_features(seen, labels, made, labels, ("cat", "dog"))
    assert measured.figures()["fid"] == pytest.approx(3)
    assert measured.figures()["diversity"] == pytest.approx(1)
    assert measured.figures()["accuracy"] == pytest.approx(75)
    assert measured.per_class()["accuracy"] == pytest.approx({"cat": 1.0, "dog": 0.5})


def test_single_images_have_no_figures():
    with pytest.raises(ValueError, match=r"features must be \(N, A\) with N at least 2, got shape \(1, 3\)"):
        frechet_distance(torch.zeros(1, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="features must be"):
        kernel_distance(torch.zeros(2, 3), torch.zeros(1, 3))
