"""Maps of features: figures against brute force, groups that stay together, and the command as people run it."""

import json

import numpy as np
import pytest
import torch

from isda.lab.analysis.maps import embed, evaluation_features, measure_separation
from isda.lab.cli import main

WORDS = ["--labels", "60", "--epochs", "1", "--width", "0.25", "--batch-size", "20", "--threads", "1"]


@pytest.fixture(scope="module")
def groups():
    """Three groups of points, two of which overlap."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 0, 0, 0], [2.0, 0, 0, 0], [20.0, 0, 0, 0]], dtype=torch.float64)
    return centres[labels] + torch.randn(90, 4, generator=chance, dtype=torch.float64), labels


def test_silhouette_is_rousseeuws(groups):
    features, labels = groups
    values = []
    for row, own in zip(features, labels.tolist(), strict=True):
        distances = (features - row).norm(dim=1)
        mean = [float(distances[labels == label].sum()) / (30 - (label == own)) for label in range(3)]
        a, b = mean[own], min(value for label, value in enumerate(mean) if label != own)
        values.append((b - a) / max(a, b))
    assert measure_separation(features, labels).silhouette == pytest.approx(np.mean(values))


def test_nearest_neighbours_vote_without_the_sample_itself(groups):
    features, labels = groups
    hits = 0
    for row in range(90):
        order = [other for other in (features - features[row]).norm(dim=1).argsort().tolist() if other != row][:4]
        votes = [sum(int(labels[other]) == label for other in order) for label in range(3)]
        best = [label for label in range(3) if votes[label] == max(votes)]
        chosen = int(labels[order[0]]) if int(labels[order[0]]) in best else best[0]
        hits += chosen == int(labels[row])
    assert measure_separation(features, labels, neighbours=4).knn_accuracy == pytest.approx(100 * hits / 90)


def test_scatter_within_over_between(groups):
    features, labels = groups
    total = float((features - features.mean(0)).square().sum())
    within = sum(29 * np.cov(features[labels == label].T.numpy()).trace() for label in range(3))
    assert measure_separation(features, labels).scatter == pytest.approx(within / (total - within))


def test_groups_stay_together_on_the_map(groups):
    features, labels = groups
    places = embed(features, perplexity=15)
    assert places.shape == (90, 2)
    far = labels == 2
    assert measure_separation(places, far.long(), neighbours=3).knn_accuracy == 100
    assert torch.equal(places, embed(features, perplexity=15))


def test_what_cannot_be_drawn_is_refused(groups):
    features, labels = groups
    with pytest.raises(ValueError, match="perplexity must be from 1 to below the 90 images"):
        embed(features, perplexity=90)
    with pytest.raises(ValueError, match="neighbours must be from 1 to 89"):
        measure_separation(features, labels, neighbours=90)
    with pytest.raises(ValueError, match="at least two classes"):
        measure_separation(features, torch.zeros_like(labels))


def test_runs_side_by_side(tmp_path, capsys):
    for method in ("cross-entropy", "isda"):
        main(["train", *WORDS, "--method", method, "--out", str(tmp_path / method)])
    seen = evaluation_features(tmp_path / "isda", most=50)
    again = evaluation_features(tmp_path / "cross-entropy", most=50)
    assert torch.equal(seen.labels, again.labels)
    capsys.readouterr()
    runs, page = [str(tmp_path / method) for method in ("cross-entropy", "isda")], tmp_path / "map.html"
    main(["map", *runs, "--images", "60", "--perplexity", "10", "--out", str(page), "--json", str(tmp_path / "j.json")])
    printed = capsys.readouterr().out
    assert "silhouette" in printed
    text = page.read_text()
    assert text.count("<canvas ") == 2
    assert "cross-entropy, seed 0" in text
    record = json.loads((tmp_path / "j.json").read_text())
    assert [row["images"] for row in record] == [60, 60]
    assert {"silhouette", "knn_accuracy", "scatter", "error"} <= record[0].keys()
    with pytest.raises(SystemExit, match="runs must be given"):
        main(["map"])
    with pytest.raises(SystemExit, match="no run in"):
        main(["map", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (torch.full((40, 3), 0.3), "the features of all 40 images are the same"),
        (1 + 1e-9 * torch.randn(40, 3).double(), "the features of all 40 images are the same"),
        (torch.zeros(40, 3), "the features of all 40 images are the same"),
        (torch.randn(40, 3).index_fill(0, torch.tensor([3]), torch.nan), "the features of 1 of 40 images are NaN"),
        (torch.randn(40, 3).index_fill(0, torch.tensor([3, 5]), torch.inf), "the features of 2 of 40 images are NaN"),
    ],
    ids=["constant", "rounded", "zero", "nan", "infinite"],
)
def test_features_without_a_map_are_refused(features, reason):
    """t-SNE would end the process with a segmentation fault."""
    with pytest.raises(ValueError, match=reason):
        embed(features.double())


@pytest.mark.parametrize("factor", [1e-300, 1e200])
def test_a_map_does_not_depend_on_the_unit_of_the_features(groups, factor):
    features, _ = groups
    points = embed(factor * features, perplexity=15)
    assert points.isfinite().all()
    assert measure_separation(points, (groups[1] == 2).long(), neighbours=3).knn_accuracy == 100


def test_features_of_one_dimension_have_a_map(groups):
    features, labels = groups
    points = embed(features[:, :1], perplexity=15)
    assert measure_separation(points, (labels == 2).long(), neighbours=3).knn_accuracy == 100


def test_a_run_without_a_map_gets_a_panel_that_says_why(tmp_path, capsys):
    """A run on images that are all the same: a network that tells none of them apart."""
    images, labels = np.full((60, 8, 8, 3), 77, dtype=np.uint8), np.arange(60) % 2
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "grey.npz", **arrays, classes=["a", "b"])
    main(["train", *WORDS, "--data", str(tmp_path / "grey.npz"), "--augment", "none", "--out", str(tmp_path / "run")])
    capsys.readouterr()
    main(["map", str(tmp_path / "run"), "--out", str(tmp_path / "map.html"), "--json", "-"])
    (record,) = json.loads(capsys.readouterr().out)
    assert [record[name] for name in ("silhouette", "knn_accuracy", "scatter")] == [None] * 3
    assert "the features of all 60 images are the same" in (tmp_path / "map.html").read_text()
