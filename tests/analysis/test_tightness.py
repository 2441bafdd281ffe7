"""The expectation and its bounds: against brute force in float64, over a run's checkpoints, and as a command."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from isda.covariance import FullCovariance
from isda.lab.analysis import observe
from isda.lab.analysis.tightness import bounds_at, bounds_over_training, measure_bounds
from isda.lab.cli import main

STEPS = 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """An ISDA run and one of cross-entropy, with a checkpoint every few steps."""
    top = tmp_path_factory.mktemp("tightness")
    words = f"--labels 60 --epochs 10 --width 0.25 --batch-size 20 --threads 1 --checkpoint-steps {STEPS} --keep 9"
    for method in ("isda", "cross-entropy"):
        main(["train", *words.split(), "--method", method, "--out", str(top / method)])
    return top


@pytest.fixture(scope="module")
def rows():
    """Features of three classes that vary, their classifier and covariances."""
    torch.manual_seed(0)
    features, targets = torch.randn(60, 5, dtype=torch.float64), torch.arange(60) % 3
    weight = torch.randn(3, 5, dtype=torch.float64)
    covariance = FullCovariance(3, 5, dtype=torch.float64)
    covariance.update(features, targets)
    return features, targets, weight, covariance


def naive_expectation(feature, target, weight, sigma, strength, draws, chance):
    """The mean over draws of -log softmax(W a~)_y, a~ ~ N(a, lambda Sigma), and its standard error."""
    drawn = chance.multivariate_normal(feature.numpy(), strength * sigma.numpy(), draws)
    losses = F.cross_entropy(torch.from_numpy(drawn) @ weight.T, torch.full((draws,), target), reduction="none")
    return float(losses.mean()), float(losses.std()) / math.sqrt(draws)


def test_expectation_is_that_of_features_drawn_from_the_equation(rows):
    features, targets, weight, covariance = rows
    bounds = measure_bounds(features @ weight.T, targets, weight, covariance, 1.5, draws=4000)
    chance = np.random.default_rng(0)
    for row in range(4):
        label = int(targets[row])
        sigma = covariance.covariance(label)
        value, error = naive_expectation(features[row], label, weight, sigma, 1.5, 40_000, chance)
        assert abs(bounds.expected[row] - value) < 5 * math.hypot(error, bounds.standard_errors[row])


def test_published_bound_is_proposition_1_and_the_order_holds(rows):
    features, targets, weight, covariance = rows
    bounds = measure_bounds(features @ weight.T, targets, weight, covariance, 1.5)
    for row in range(6):
        own = weight[targets[row]]
        sigma = covariance.covariance(int(targets[row]))
        z = [float((w - own) @ features[row] + 0.75 * (w - own) @ sigma @ (w - own)) for w in weight]
        assert bounds.published[row] == pytest.approx(math.log(sum(map(math.exp, z))))
    assert (bounds.tilted <= bounds.published + 1e-12).all()
    assert (bounds.expected <= bounds.tilted + 5 * bounds.standard_errors).all()


def test_ratio_of_gaps_and_its_standard_error_over_samples(rows):
    features, targets, weight, covariance = rows
    bounds = measure_bounds(features @ weight.T, targets, weight, covariance, 1.5)
    tilted, published = (one - bounds.expected for one in (bounds.tilted, bounds.published))
    assert bounds.ratio.value == pytest.approx(float(tilted.sum() / published.sum()))
    chance = np.random.default_rng(1)
    again = [chance.integers(0, 60, 60) for _ in range(2000)]
    spread = np.std([float(tilted[rows].sum() / published[rows].sum()) for rows in again])
    assert bounds.ratio.standard_error == pytest.approx(spread, rel=0.2)


def test_without_strength_all_three_are_the_cross_entropy(rows):
    features, targets, weight, covariance = rows
    logits = features @ weight.T
    bounds = measure_bounds(logits, targets, weight, covariance, 0.0)
    loss = F.cross_entropy(logits, targets, reduction="none")
    for one in (bounds.expected, bounds.published, bounds.tilted):
        torch.testing.assert_close(one, loss)
    assert bounds.ratio is None


def test_an_isda_run_has_the_strength_and_covariances_of_each_checkpoint(runs):
    moments = list(bounds_over_training(runs / "isda", most=30))
    assert [moment.step for moment in moments] == [10, 20, 30]
    assert [moment.bounds.strength for moment in moments] == pytest.approx([0.5 * step / 30 for step in (10, 20, 30)])
    assert all(moment.own for moment in moments)
    assert all(len(moment.bounds.expected) == 30 for moment in moments)


def test_a_run_without_isda_has_those_of_its_features(runs):
    last = list(bounds_over_training(runs / "cross-entropy", most=60, lambda_0=2.0))[-1]
    assert (last.own, last.bounds.strength) == (False, 2.0)
    # All its images were looked at, by the final weights: the same as of the finished network.
    finished = bounds_at(observe(runs / "cross-entropy"), [2.0])[0]
    assert float(last.bounds.published.mean()) == pytest.approx(float(finished.published.mean()), rel=1e-5)


def test_a_damaged_checkpoint_is_named(runs, tmp_path):
    import shutil

    copy = shutil.copytree(runs / "isda", tmp_path / "copy")
    (copy / "checkpoints" / "step-000000020.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"step-000000020\.pt is damaged"):
        list(bounds_over_training(copy, most=20))
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ValueError, match="no readable checkpoint"):
        list(bounds_over_training(copy))
    main(
        ["tightness", str(copy), "--images", "20", "--out", str(tmp_path / "page.html"), "--json", str(tmp_path / "a")]
    )
    record = json.loads((tmp_path / "a").read_text())
    expected = bounds_at(observe(copy, most=20), [0.5])[0]
    assert record["training"] == []
    assert [point["strength"] for point in record["finished"]] == [0.5]
    assert record["finished"][0]["published"] == pytest.approx(float(expected.published.mean()))


def test_the_command_prints_writes_and_says_what_is_wrong(runs, tmp_path, capsys):
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    words = ["tightness", str(runs / "isda"), "--images", "20", "--strengths", "1", "4", "--out", str(page)]
    main([*words, "--json", str(record)])
    printed = capsys.readouterr().out
    assert "ratio of gaps" in printed
    assert str(page) in printed
    stored = json.loads(record.read_text())
    assert [row["step"] for row in stored["training"]] == [10, 20, 30]
    assert [row["strength"] for row in stored["finished"]] == [1.0, 4.0]
    assert all(row["tilted"] <= row["published"] for row in stored["training"])
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "--strengths 1 4" in text
    for wrong, told in ((["--images", "1"], "images must be"), (["--draws", "5"], "draws must be an even number")):
        with pytest.raises(SystemExit, match=told):
            main([*words, *wrong])
    with pytest.raises(SystemExit, match="no run in"):
        main(["tightness", str(tmp_path)])
