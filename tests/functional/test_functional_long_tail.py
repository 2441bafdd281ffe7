"""Shifts, offsets and weights for long tails against the equations; the closed form against Monte-Carlo."""

import math

import pytest
import torch

from isda.functional import (
    class_balanced_weights,
    jensen_bound,
    label_margins,
    margin_variance,
    mean_shift,
    prior_offsets,
)
from isda.functional.long_tail import class_counts
from oracles import random_covariances

C, A, N = 4, 3, 5
COUNTS = [500, 60, 7, 1]


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mean_shift_is_the_loop_over_its_equation():
    weight, shift = random(C, A, seed=1).requires_grad_(), random(C, A, seed=2).requires_grad_()
    classes = torch.tensor([2, 0, 2, 3])
    expected = torch.stack([torch.stack([(weight[j] - weight[y]) @ shift[y] for j in range(C)]) for y in classes])
    found = mean_shift(weight, shift, classes)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert [float(found[k, y].detach()) for k, y in enumerate(classes)] == [0.0] * 4
    pull = random(4, C, seed=3)
    for one, other in zip(
        torch.autograd.grad(found, [weight, shift], pull),
        torch.autograd.grad(expected, [weight, shift], pull),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_offsets_and_margins_and_weights_are_those_of_their_publications():
    total = sum(COUNTS)
    offsets = prior_offsets(COUNTS, tau=1.5)
    margins, weights = label_margins(COUNTS, max_margin=0.7), class_balanced_weights(COUNTS, beta=0.99)
    raw = [(1 - 0.99) / (1 - 0.99**n) for n in COUNTS]
    for y, n in enumerate(COUNTS):
        for j, m in enumerate(COUNTS):
            expected = 1.5 * (math.log(m / total) - math.log(n / total))
            assert float(offsets[y, j]) == pytest.approx(expected, abs=1e-12)
        assert float(margins[y]) == pytest.approx(0.7 * n**-0.25 / min(COUNTS) ** -0.25, rel=1e-12)
        assert float(weights[y]) == pytest.approx(raw[y] * C / sum(raw), rel=1e-9)


def test_weights_go_from_equal_to_inverse_frequencies():
    assert class_balanced_weights(COUNTS, beta=0.0).tolist() == [1.0] * C
    inverse = 1 / torch.tensor(COUNTS, dtype=torch.float64)
    torch.testing.assert_close(
        class_balanced_weights(COUNTS, beta=1 - 1e-12), inverse * C / inverse.sum(), rtol=1e-6, atol=0
    )


def test_the_sum_bounds_the_expectation_over_moved_and_stretched_features_and_is_near_it_for_small_variances():
    """E over a~ ~ N(a + alpha delta_y, lambda Sigma_y) of the cross-entropy with offsets, by drawing."""
    covariances = random_covariances(C, A, generator=torch.Generator().manual_seed(4))
    weight, shift, features = random(C, A, seed=5), random(C, A, seed=6), random(N, A, seed=7)
    targets, offsets, alpha = torch.tensor([0, 1, 2, 3, 1]), prior_offsets(COUNTS), 0.8
    logits = features @ weight.t()
    for strength, tightness in ((1.0, math.inf), (0.001, 0.003)):
        terms = alpha * mean_shift(weight, shift, targets) + offsets[targets]
        bound = jensen_bound(logits + terms, targets, margin_variance(weight, covariances, targets), strength)
        generator = torch.Generator().manual_seed(8)
        for i, y in enumerate(targets.tolist()):
            noise = torch.randn(20_000, A, generator=generator, dtype=torch.float64)
            root = torch.linalg.cholesky(covariances[y] + 1e-12 * torch.eye(A))
            drawn = features[i] + alpha * shift[y] + strength**0.5 * noise @ root.t()
            scores = drawn @ weight.t() + offsets[y]
            losses = torch.logsumexp(scores, 1) - scores[:, y]
            mean, error = float(losses.mean()), float(losses.std() / len(losses) ** 0.5)
            assert mean - 4 * error <= float(bound[i]) <= mean + 4 * error + tightness


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prior_offsets([1, 2], tau=-1), "tau must be a finite number >= 0, got -1"),
        (lambda: label_margins([1, 2], max_margin=math.nan), "max_margin must be a finite number >= 0, got nan"),
        (lambda: class_balanced_weights([1, 2], beta=1.0), r"beta must be in \[0, 1\), got 1\.0"),
        (lambda: class_counts([3]), r"counts must have shape \(C,\) for at least two classes, got \(1,\)"),
        (lambda: class_counts([[3, 1]]), r"counts must have shape \(C,\) for at least two classes, got \(1, 2\)"),
        (lambda: class_counts([3, 0]), "counts must be finite numbers > 0, got 0 to 3"),
        (lambda: class_counts([3, math.inf]), "counts must be finite numbers > 0, got 3 to inf"),
    ],
)
def test_bad_counts_and_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
