"""Distances between the student's prediction and a target."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from semi_helpers import normal

from isda.lab.methods.semi import entropy, kl_divergence, mean_squared_error
from isda.lab.methods.semi.base import DISTANCES


def softmax(row):
    exponentials = [math.exp(value - max(row)) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def oracle(name, logits, target):
    p, t = softmax(logits), target
    if name == "mse":
        return sum((p[c] - t[c]) ** 2 for c in range(len(p))) / len(p)
    return sum(t[c] * math.log(t[c] / p[c]) for c in range(len(p)) if t[c] > 0)


@pytest.mark.parametrize("name", list(DISTANCES))
@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 10))
def test_values_equal_the_formula(name, seed, scale):
    logits = scale * normal(5, 4, seed=seed)
    target = torch.softmax(scale * normal(5, 4, seed=seed + 1), 1)
    target[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    expected = [oracle(name, z, t) for z, t in zip(logits.tolist(), target.tolist(), strict=True)]
    torch.testing.assert_close(
        DISTANCES[name](logits, target), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", list(DISTANCES))
def test_the_student_gets_the_exact_gradient_and_the_target_none(name):
    logits = normal(5, 4, seed=1).requires_grad_()
    target_logits = normal(5, 4, seed=2).requires_grad_()
    target = torch.softmax(target_logits, 1)
    DISTANCES[name](logits, target).sum().backward()
    assert target_logits.grad is None
    for i in range(5):
        for c in range(4):
            values = []
            for shift in (1e-6, -1e-6):
                moved = logits[i].tolist()
                moved[c] += shift
                values.append(oracle(name, moved, target[i].tolist()))
            assert float(logits.grad[i, c]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-9)


def test_mean_squared_error_is_the_sum_over_classes_divided_by_their_number():
    logits, target = normal(5, 4, seed=1), torch.softmax(normal(5, 4, seed=2), 1)
    batch_sum = ((torch.softmax(logits, 1) - target) ** 2).sum()
    assert float(mean_squared_error(logits, target).mean()) == pytest.approx(float(batch_sum) / 4 / 5, rel=1e-12)


def test_kl_divergence_is_zero_at_the_target_and_positive_elsewhere():
    logits = normal(50, 4, seed=1)
    assert kl_divergence(logits, torch.softmax(logits, 1)).abs().max() < 1e-14
    assert (kl_divergence(logits, torch.softmax(normal(50, 4, seed=2), 1)) > 1e-3).all()


def test_entropy_equals_torchs_and_has_gradient():
    logits = normal(6, 4, seed=3).requires_grad_()
    torch.testing.assert_close(entropy(logits), torch.distributions.Categorical(logits=logits).entropy())
    assert torch.autograd.grad(entropy(logits).sum(), logits)[0].abs().max() > 0.01


@pytest.mark.parametrize("distance", DISTANCES.values())
def test_other_shapes_are_refused(distance):
    with pytest.raises(ValueError, match=r"logits and target must both be \(N, C\), got \(5, 4\) and \(5, 3\)"):
        distance(torch.zeros(5, 4), torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"must both be \(N, C\), got \(5, 4, 2\) and \(5, 4, 2\)"):
        distance(torch.zeros(5, 4, 2), torch.zeros(5, 4, 2))
