"""The judge of directions: it finds what was planted, nothing where nothing is, and is not fooled by outliers."""

import itertools

import pytest
import torch

from isda.lab.analysis.directions import judge_ends
from isda.lab.analysis.directions.atlas import holm, judge_features


def test_a_direction_that_the_judge_has_too_is_found_and_another_is_not():
    planted, nothing = torch.randn(2, 120, dtype=torch.float64)
    features = torch.randn(120, 10, dtype=torch.float64)
    features[:, 3] += 4 * planted
    found = judge_ends(features, torch.stack([planted, nothing]))
    assert [one.images for one in found] == [12, 12]
    assert found[0].ratio > 1.3
    assert found[0].shuffled_ratio > 1.3
    assert max(found[0].p, found[0].shuffled_p) == pytest.approx(1 / 2000)
    assert found[1].ratio == pytest.approx(1, abs=0.15)
    assert max(found[1].p, found[1].shuffled_p) > 0.05


def test_p_values_are_uniform_where_nothing_is():
    features = torch.randn(100, 6, dtype=torch.float64)
    found = judge_ends(features, torch.randn(200, 100, dtype=torch.float64), draws=199)
    for values in ([one.p for one in found], [one.shuffled_p for one in found]):
        assert sum(values) / 200 == pytest.approx(0.5, abs=0.08)
        assert sum(p <= 0.1 for p in values) / 200 == pytest.approx(0.1, abs=0.07)


def test_images_that_are_far_from_everything_are_no_direction():
    """Outliers at both ends: further apart than random pairs are, whichever end they are at."""
    projections = torch.linspace(-1, 1, 100, dtype=torch.float64)
    features = torch.randn(100, 20, dtype=torch.float64) * (1 + 5 * projections.abs()[:, None] ** 8)
    [found] = judge_ends(features, projections[None])
    assert found.p < 0.01
    assert found.shuffled_p > 0.05
    assert found.shuffled_ratio == pytest.approx(1, abs=0.1)


def test_the_ratios_are_those_of_the_definition():
    features, projections = torch.randn(30, 4, dtype=torch.float64), torch.randn(1, 30, dtype=torch.float64)
    order = sorted(range(30), key=lambda i: float(projections[0, i]))
    low, high = order[:3], order[-3:]

    def mean(pairs):
        distances = [float((features[i] - features[j]).norm()) for i, j in pairs]
        return sum(distances) / len(distances)

    across = mean(itertools.product(low, high))
    [found] = judge_ends(features, projections, draws=10)
    assert found.ratio == pytest.approx(across / mean(itertools.combinations(range(30), 2)))
    within = mean([*itertools.combinations(low, 2), *itertools.combinations(high, 2)])
    assert found.shuffled_ratio == pytest.approx(across / within)


def test_small_classes_and_other_images():
    assert judge_ends(torch.zeros(3, 2), torch.zeros(1, 3)) == []
    [same] = judge_ends(torch.zeros(4, 2), torch.arange(4.0)[None], draws=5)
    assert (same.ratio, same.p, same.shuffled_p) == pytest.approx((1, 1, 1))
    with pytest.raises(ValueError, match="projections must be of the 4 images of features, got 5"):
        judge_ends(torch.zeros(4, 2), torch.zeros(1, 5))


def test_holms_correction_is_that_of_the_definition():
    values = [0.01, 0.02, 0.03, 0.005, 0.9, 0.02]
    order = sorted(values)
    for value, corrected in zip(values, holm(values), strict=True):
        rank = order.index(value)
        assert corrected == pytest.approx(min(1, max((6 - j) * order[j] for j in range(rank + 1))))
    assert holm([]) == []


def test_a_judge_is_another_run_of_such_images(seen, small_run, other_run):
    features = judge_features(other_run, seen)
    assert features.shape[0] == len(seen.labels)
    assert not torch.allclose(features, seen.features)
    with pytest.raises(ValueError, match="judge must be another run"):
        judge_features(small_run, seen)
