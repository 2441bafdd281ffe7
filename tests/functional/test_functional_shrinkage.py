"""Intensities of shrinkage: their formulas, their limits, and that what they give is nearer to the truth."""

from __future__ import annotations

import pytest
import torch

from isda.functional.moments import shrinkage_to_diagonal, shrinkage_to_target


def summary(matrix):
    return matrix.diagonal().sum(), matrix.square().sum(), matrix.diagonal().square().sum()


def drawn(truth, n, generator):
    rows = torch.randn(n, len(truth), generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(truth).t()
    rows = rows - rows.mean(0)
    return rows.t() @ rows / n


def truth_of(dim, generator):
    mixing = torch.randn(dim, 2 * dim, generator=generator, dtype=torch.float64)
    return mixing @ mixing.t() / (2 * dim)


@pytest.mark.parametrize("n", [6, 20, 60])
def test_shrunk_towards_a_target_is_nearer_to_the_truth_and_not_far_from_the_better_of_both(n):
    generator = torch.Generator().manual_seed(n)
    truth = truth_of(8, generator)
    target = truth + 0.3 * truth_of(8, generator)
    errors = torch.zeros(3, dtype=torch.float64)
    for _ in range(200):
        own = drawn(truth, n, generator)
        trace, square, _ = summary(own)
        share = shrinkage_to_target(torch.tensor(n - 1.0), trace, square, (own - target).square().sum())
        made = (1 - share) * own + share * target
        errors += torch.stack([(one - truth).square().sum() for one in (made, own, target)])
    assert errors[0] < errors[1]
    assert errors[0] < 1.5 * errors[1:].min()


@pytest.mark.parametrize("n", [6, 20, 200])
def test_shrunk_towards_its_diagonal_is_nearer_to_the_truth(n):
    generator = torch.Generator().manual_seed(n)
    truth = truth_of(8, generator)
    errors = torch.zeros(2, dtype=torch.float64)
    for _ in range(200):
        own = drawn(truth, n, generator)
        share = shrinkage_to_diagonal(torch.tensor(n - 1.0), *summary(own))
        made = (1 - share) * own + share * torch.diag(own.diagonal())
        errors += torch.stack([(made - truth).square().sum(), (own - truth).square().sum()])
    assert errors[0] < errors[1]


def test_many_samples_are_trusted_and_none_are_not():
    generator = torch.Generator().manual_seed(0)
    own = drawn(truth_of(5, generator), 100_000, generator)
    trace, square, diagonal = summary(own)
    far = torch.tensor(1.0)
    assert float(shrinkage_to_target(torch.tensor(99_999.0), trace, square, far)) < 1e-3
    assert float(shrinkage_to_diagonal(torch.tensor(99_999.0), trace, square, diagonal)) < 1e-2
    zero = torch.zeros(())
    assert float(shrinkage_to_target(torch.tensor(-1.0), zero, zero, far)) == 1
    assert float(shrinkage_to_target(torch.tensor(9.0), trace, square, zero)) == 1
    assert float(shrinkage_to_diagonal(torch.tensor(9.0), torch.tensor(2.0), torch.tensor(2.0), torch.tensor(2.0))) == 1
