"""The converged tilt: a stationary point of a convex function, below every other tilt."""

from __future__ import annotations

import pytest
import torch

from isda.functional.tilt import converged_tilt, tilt_system


def case(num_classes, rows=6, *, strength=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num_classes)
    weight = torch.randn(num_classes, 5, generator=generator, dtype=torch.float64)
    logits = 3 * torch.randn(rows, num_classes, generator=generator, dtype=torch.float64)
    return logits.to(dtype), (strength * weight @ weight.t()).to(dtype)


def value_at(logits, table, tilt):
    """F(t) of one row, from its definition."""
    terms = []
    for j in range(len(logits)):
        apart = -tilt.clone()
        apart[j] += 1
        terms.append(logits[j] + apart @ table @ apart / 2)
    return torch.logsumexp(torch.stack(terms), 0)


@pytest.mark.parametrize("num_classes", [2, 3, 30])
@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_the_tilt_is_its_own_softmax(num_classes, strength):
    logits, table = case(num_classes, strength=strength)
    start = torch.softmax(logits, 1)
    found = converged_tilt(logits, table, start)
    apart = found.tilt - found.softmax
    assert float((apart @ table).abs().max()) < 1e-9 * float(table.abs().max())
    torch.testing.assert_close(found.tilt.sum(1), torch.ones(6, dtype=torch.float64))
    for row in range(6):
        assert float(found.value[row]) == pytest.approx(float(value_at(logits[row], table, found.tilt[row])), rel=1e-10)


@pytest.mark.parametrize("num_classes", [2, 7])
def test_no_other_tilt_is_lower_wherever_the_search_starts(num_classes):
    logits, table = case(num_classes, strength=4.0)
    found = converged_tilt(logits, table, torch.softmax(logits, 1))
    corner = torch.eye(num_classes, dtype=torch.float64)[torch.zeros(6, dtype=torch.long)]
    torch.testing.assert_close(converged_tilt(logits, table, corner).value, found.value, rtol=1e-11, atol=1e-11)
    others = torch.softmax(2 * torch.randn(50, num_classes, dtype=torch.float64), 1)
    for row in range(6):
        assert all(float(value_at(logits[row], table, t)) >= float(found.value[row]) - 1e-10 for t in others)


def test_float32_comes_as_near_as_it_can():
    logits, table = case(12, strength=5.0)
    exact = converged_tilt(logits, table, torch.softmax(logits, 1))
    found = converged_tilt(logits.float(), table.float(), torch.softmax(logits.float(), 1))
    torch.testing.assert_close(found.value.double(), exact.value, rtol=1e-5, atol=1e-5)


def test_the_system_is_solved():
    logits, table = case(9, strength=10.0)
    softmax, right = torch.softmax(logits, 1), torch.randn(6, 9, dtype=torch.float64)
    solution, image = tilt_system(softmax, right, table)
    for row in range(6):
        s = softmax[row]
        matrix = torch.eye(9, dtype=torch.float64) + (torch.diag(s) - torch.outer(s, s)) @ table
        expected = torch.linalg.solve(matrix, right[row])
        # Only K d is determined: K has a null space here.
        torch.testing.assert_close(image[row], expected @ table, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(solution[row] @ table, image[row], rtol=1e-8, atol=1e-8)
