"""Directions of classes: eigenvectors, the images at their ends, what is near a moved feature, all by brute force."""

import numpy as np
import pytest
import torch

from isda.lab.analysis.directions import class_directions, land, make_atlas, nearest
from isda.lab.analysis.directions.atlas import DEVIATIONS, visible_spread


def oracle(features):
    """Eigenvalues and eigenvectors (as rows) of the covariance, the largest first."""
    values, vectors = np.linalg.eigh(np.cov(features.numpy().T, bias=True))
    return values[::-1].copy(), vectors.T[::-1].copy()


@pytest.mark.parametrize(("images", "width"), [(40, 7), (9, 30), (20, 20)], ids=["tall", "wide", "square"])
def test_directions_are_the_leading_eigenvectors_of_the_covariance(with_features, images, width):
    scale = torch.linspace(3, 0.5, width, dtype=torch.float64)
    observed = with_features(torch.randn(images, width, dtype=torch.float64) * scale + 5, torch.full((images,), 2))
    values, vectors = oracle(observed.features)
    found = class_directions(observed, 2, 4)
    torch.testing.assert_close(found.variances, torch.from_numpy(values[:4]))
    torch.testing.assert_close(found.shares, torch.from_numpy(values[:4] / values.sum()))
    along = (found.vectors * torch.from_numpy(vectors[:4])).sum(1).abs()
    torch.testing.assert_close(along, torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(4, dtype=torch.float64))
    largest = found.vectors.abs().argmax(1)
    assert (found.vectors[torch.arange(4), largest] > 0).all()


def test_shares_of_all_directions_sum_to_one(seen):
    found = class_directions(seen, 3, 1000)
    assert len(found.vectors) == len(seen.rows_of(3)) - 1
    assert float(found.shares.sum()) == pytest.approx(1)
    assert (found.variances.diff() <= 0).all()


@pytest.mark.parametrize("images", [0, 1])
def test_a_class_of_fewer_than_two_images_has_no_direction(with_features, images):
    observed = with_features(torch.randn(images + 5, 4, dtype=torch.float64), torch.tensor([1] * images + [0] * 5))
    assert class_directions(observed, 1, 3).vectors.shape == (0, 4)


def test_images_with_the_same_features_have_no_direction(with_features):
    observed = with_features(torch.full((6, 4), 0.1, dtype=torch.float64), torch.zeros(6, dtype=torch.int64))
    assert len(class_directions(observed, 0, 3).vectors) == 0


def test_what_is_asked_is_checked(seen):
    with pytest.raises(ValueError, match="label must be from 0 to 9, got 10"):
        class_directions(seen, 10, 3)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        class_directions(seen, 0, 0)


@pytest.mark.parametrize(("label", "without"), [(None, None), (4, None), (None, 7), (4, 7)])
def test_nearest_images_are_those_that_brute_force_finds(seen, label, without):
    point = seen.features[11] + 0.3
    distances = {
        row: sum((a - b) ** 2 for a, b in zip(seen.features[row].tolist(), point.tolist(), strict=True)) ** 0.5
        for row in range(len(seen.labels))
        if (label is None or int(seen.labels[row]) == label) and row != without
    }
    expected = sorted(distances, key=distances.get)[:5]
    rows, found = nearest(seen, point, 5, label=label, without=without)
    assert rows.tolist() == expected
    assert found.tolist() == pytest.approx([distances[row] for row in expected])


def test_a_feature_that_is_not_moved_lands_on_its_image_and_its_prediction(seen):
    landing = land(seen, seen.features[5], 1)
    assert landing.nearest.tolist() == [5]
    said = seen.trained.network(seen.trained.pipeline(seen.images(torch.tensor([5])))).double().softmax(1)[0]
    torch.testing.assert_close(landing.probabilities, said, rtol=1e-4, atol=1e-5)


def test_ends_are_the_extreme_projections_and_landings_those_of_the_moved_feature(seen):
    atlas = make_atlas(seen, classes=["7", "2"], directions=2, images=2)
    assert [view.label for view in atlas.classes] == [7, 2]
    view = atlas.classes[0]
    rows = seen.rows_of(7)
    mean = seen.features[rows].mean(0)
    assert view.moved == min(rows.tolist(), key=lambda row: float((seen.features[row] - mean).norm()))
    _, vectors = oracle(seen.features[rows])
    for one, vector in zip(view.directions, vectors, strict=False):
        along = {row: float(seen.features[row] @ torch.from_numpy(vector)) for row in rows.tolist()}
        order = sorted(along, key=along.get)
        # The oracle's sign is another matter.
        assert [one.low.tolist(), one.high.tolist()] in ([order[:2], order[:-3:-1]], [order[:-3:-1], order[:2]])
    one, direction = view.directions[1], class_directions(seen, 7, 2)
    for step, landing in zip(DEVIATIONS, one.landings, strict=True):
        point = seen.features[view.moved] + step * one.variance**0.5 * direction.vectors[1]
        assert landing.nearest.tolist() == nearest(seen, point, 2, without=view.moved)[0].tolist()
        torch.testing.assert_close(landing.probabilities, (seen.weight @ point + seen.bias).softmax(0))


def spread_oracle(low, high):
    """|m_H - m_L| / sqrt((V_L + V_H) / 2), by numpy."""
    low, high = (np.stack([np.asarray(image, dtype=float).ravel() for image in end]) for end in (low, high))
    within = (low.var(0, ddof=1).sum() + high.var(0, ddof=1).sum()) / 2
    return np.linalg.norm(high.mean(0) - low.mean(0)) / np.sqrt(within)


def test_visible_spread_is_the_distance_of_mean_images_over_the_deviation_at_an_end():
    low, high = torch.randint(0, 100, (5, 3, 8, 8)).byte(), torch.randint(90, 256, (4, 3, 8, 8)).byte()
    assert visible_spread(low, high) == pytest.approx(spread_oracle(low, high))
    # Grey images are compared as their three equal channels: the ratio is the same.
    assert visible_spread(low[:, :1], high[:, :1]) == pytest.approx(spread_oracle(low[:, :1], high[:, :1]))
    assert visible_spread(low[:1], high) is None
    assert visible_spread(low[:1].repeat(2, 1, 1, 1), low[:1].repeat(2, 1, 1, 1)) == 0


def test_large_images_of_different_sizes_have_a_visible_spread():
    dark = [torch.full((3, 90 + 10 * number, 120), 20 + number, dtype=torch.uint8) for number in range(3)]
    bright = [torch.full((1, 70, 80 + number), 220 + number, dtype=torch.uint8) for number in range(3)]
    # Constant images stay constant in any size: means 21 and 221, variance 1 at both ends.
    assert visible_spread(dark, bright) == pytest.approx(200)


def test_the_most_telling_direction_has_the_largest_share_times_visible_spread(seen):
    [view] = make_atlas(seen, classes=["4"], directions=3, images=2).classes
    rows, found = seen.rows_of(4), class_directions(seen, 4, 3)
    scores = []
    for vector, share, one in zip(found.vectors, found.shares.tolist(), view.directions, strict=True):
        order = rows[(seen.features[rows] @ vector).argsort()]
        expected = spread_oracle(seen.images(order[:2]), seen.images(order[-2:]))  # a tenth, but at least 2
        assert one.visible == pytest.approx(expected)
        scores.append(share * expected)
    assert view.most_telling == int(np.argmax(scores))
