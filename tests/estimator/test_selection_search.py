"""The search on known score surfaces, and where it begins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import problem, rows_of

from isda.estimator import selection
from isda.estimator.convex import principal_axes
from isda.estimator.covariances import row_covariances
from isda.estimator.data import best_scale, log_likelihoods
from isda.estimator.selection import _ALONG_BOTH, _ALONG_C, _ALONG_STRENGTH
from isda.estimator.trials import FoldSolver, SelectionFold, Trials

MOVES = [_ALONG_STRENGTH, _ALONG_C, _ALONG_BOTH]


class Surface:
    """Trials whose scores are a function of the point."""

    def __init__(self, score):
        self.score, self.solutions = score, {}

    def compare(self, point, other):
        self.solutions[point] = self.solutions[other] = []
        return self.score(point) - self.score(other), 0.0

    def is_better(self, point, other):
        return self.compare(point, other)[0] > selection.MIN_GAIN

    def known_gain(self, point, other):
        return self.score(point) - self.score(other)


def bowl(strength, inverse):
    return lambda point: -((point[0] - strength) ** 2) - (point[1] - inverse) ** 2


@pytest.mark.parametrize("centre", [(1.1, -2.2), (0.55, 1.4), (2.0, 0.0), (-1.3, 2.8)])
def test_a_bowl_is_left_at_the_nearest_half_decade(centre):
    surface = Surface(bowl(*centre))
    point = selection._climb(surface, (0.0, 0.0), MOVES)
    assert np.abs(np.subtract(point, centre)).max() <= 0.5
    refined = selection._refine(surface, point, MOVES)
    assert np.abs(np.subtract(refined, centre)).max() <= 0.3
    assert surface.score(refined) >= surface.score(point)


@pytest.mark.parametrize(("inverse", "sides"), [(-1.2, {-1.5}), (-0.8, {-0.5}), (-1.0, {-0.5, -1.5})])
def test_half_steps_are_tried_on_the_higher_side(inverse, sides):
    surface = Surface(bowl(0.0, inverse))
    point = selection._climb(surface, (0.0, 0.0), [_ALONG_C])
    assert point == (0.0, -1.0)
    assert selection._refine(surface, point, [_ALONG_C]) == point
    assert {point[1] for point in surface.solutions if point[1] % 1} == sides


@pytest.mark.parametrize(("lead", "last"), [(1.0, 4.0), (100.0, 1.0)])
def test_a_climb_ends_where_the_point_ahead_is_out_of_reach(lead, last):
    surface = Surface(lambda point: lead if point[0] == 0 else np.log(5 + point[1]))
    point = selection._climb(surface, (selection.OFF, 0.0), [_ALONG_C], ahead=(0.0, 0.0))
    assert point == (selection.OFF, last)


def test_the_search_begins_at_the_best_discriminant_analysis():
    inputs, labels, counts, weights = problem(3, n=60, weighted=True)
    train, test = slice(0, 40), slice(40, 60)
    rows = rows_of(inputs[train], labels[train], counts[train], weights[train], 3)
    axes = principal_axes(rows)
    rows = rows._replace(inputs=axes.transform(rows.inputs), variances=axes.variances)
    covariances, total = row_covariances("within", rows), float(weights[train].sum())
    held_out = inputs[test], labels[test], weights[test]
    fold = SelectionFold(
        covariances, axes.transform(held_out[0]), held_out[1], held_out[2], total, torch.clone, torch.clone
    )
    scores = {}
    means = torch.stack(
        [
            sum(c * x for x, y, c in zip(inputs[train], labels[train], counts[train], strict=True) if y == k)
            for k in range(3)
        ]
    )
    means /= torch.stack([counts[train][labels[train] == k].sum() for k in range(3)]).unsqueeze(1)
    apart = inputs[train] - means[labels[train]]
    within = (apart * counts[train].unsqueeze(1)).t() @ apart / counts[train].sum()
    for exponent in range(-6, 5):
        matrix = within + 3 / (2 * 10.0**exponent * total) * torch.eye(inputs.shape[1])
        weight = torch.linalg.solve(matrix, (means - axes.centre).t()).t()
        logits = (held_out[0] - axes.centre) @ weight.t() - (weight * (means - axes.centre)).sum(1) / 2
        logits *= best_scale(logits, *held_out[1:])
        scores[exponent] = float(held_out[2].double() @ log_likelihoods(logits, held_out[1]))
    solver = FoldSolver(bound="jensen", accuracy=1e-6, max_iter=100)
    assert Trials([lambda: fold], None, solver).discriminant_product() == max(scores, key=scores.get)
