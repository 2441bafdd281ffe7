"""Feature inversion as a user has it: `isda visualize` on a small run and a small generator."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from generative_runs import SMALL_WORDS
from isda.lab.analysis import observe
from isda.lab.analysis.inversion import (
    Descent,
    Inverter,
    augmented_features,
    choose_rows,
    features_along,
    generator_of_run,
    strength_of,
)
from isda.lab.analysis.inversion.encoder import encoder_of_run
from isda.lab.tasks.common.generators import load_generator
from small_runs import digits, isda

pytestmark = pytest.mark.filterwarnings("ignore:the generator has collapsed", "ignore:the discriminator tells")
QUICK = ["--iterations", 30, "--images", 4, "--augmented", 2, "--device", "cpu"]


def small_generator(folder: Path, judge: Path, *words: object) -> Path:
    _, err, code = isda(
        "generate",
        "train",
        *SMALL_WORDS,
        "--method",
        "infogan",
        "--judge",
        judge,
        "--threads",
        1,
        *words,
        "--out",
        folder,
    )
    assert code is None, err
    return folder


@pytest.fixture(scope="module")
def generator(finished_run, tmp_path_factory) -> Path:
    return small_generator(tmp_path_factory.mktemp("generators") / "gan", finished_run)


@pytest.fixture(scope="module")
def observed(finished_run):
    return observe(finished_run)


def test_the_command_writes_pictures_a_page_and_figures(finished_run, generator, tmp_path):
    words = ["visualize", finished_run, "--generator", generator, *QUICK, "--out", tmp_path / "seen"]
    out, err, code = isda(*words, "--json", tmp_path / "figures.json")
    assert code is None, err
    assert "step II" in out
    record = json.loads((tmp_path / "figures.json").read_text())
    assert record["strength"] == 0.5
    assert [row["class"] for row in record["rows"]] == ["0", "1", "2", "3"]
    for row in record["rows"]:
        assert len(row["step_2"]) == 2
        for one in (row["step_1"], *row["step_2"]):
            assert 0 <= one["iterations"] <= 30
        # Step I may trade features for pixels, step II has features alone.
        assert all(one["feature_error"] <= one["feature_error_at_start"] for one in row["step_2"])
        assert len(row["step_2"][0]["nearest_training_images"]) == 5
    steps = record["step_1"], record["step_2"]
    mean = sum(one["feature_error"] for row in record["rows"] for one in row["step_2"]) / 8
    assert steps[1]["feature_error"] == pytest.approx(mean, rel=1e-5)
    for step in steps:
        assert 0 < step["lowered_by"] <= 1
        assert 0 <= step["same_class"] <= 1
    page = (tmp_path / "seen" / "visualize.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "--images 4 --augmented 2 --strength 0.5 --iterations 30 --pixel-weight 0.005 --tolerance 0.01" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    sizes = [Image.open(tmp_path / "seen" / f"{name}.png").size for name in ("augmented", "nearest")]
    assert sizes[0][0] > 5 * 64
    assert min(size[1] for size in sizes) > 4 * 64
    # The same seed gives the same pictures, another one other images.
    again = (tmp_path / "seen" / "augmented.png").read_bytes()
    assert isda(*words)[2] is None
    assert (tmp_path / "seen" / "augmented.png").read_bytes() == again
    out, _, code = isda(*words, "--seed", 1, "--json", "-", "--classes", "7", "--strength", 2)
    other = json.loads(out)
    assert code is None
    assert {row["class"] for row in other["rows"]} == {"7"}
    assert other["strength"] == 2
    assert Image.open(io.BytesIO(again)).size == sizes[0]


def test_words_that_cannot_be_meant_are_refused_before_anything_is_computed(finished_run, generator, tmp_path):
    def refused(*words, run=finished_run, by=generator):
        out, err, code = isda("visualize", run, "--generator", by, *words, "--out", tmp_path / "seen")
        assert isinstance(code, str), (out, err)
        assert not (tmp_path / "seen").exists()
        return code

    assert "classes must be one of 0, 1" in refused("--classes", "ten")
    assert "strength must be a finite number >= 0" in refused("--strength", "nan")
    assert "augmented must be from 1 to 20" in refused("--augmented", 0)
    assert "images must be from 1 to 100" in refused("--images", 0)
    assert "iterations must be at least 1" in refused("--iterations", 0)
    assert "lr must be positive" in refused("--lr", 1, "nan")
    assert "pixel_weight must be a finite number >= 0" in refused("--pixel-weight", -1)
    assert "seed must be from 0" in refused("--seed", -1)
    assert "nowhere" in refused(run="nowhere")
    assert "must be of a classifier" in refused(run=generator)
    assert "must be of a generator" in refused(by=finished_run)


def test_a_generator_of_other_data_is_refused(finished_run, tmp_path):
    chance = np.random.default_rng(0)
    for name, side, count in (("other", 8, 10), ("larger", 28, 10), ("fewer", 8, 2)):
        x, y = chance.integers(0, 255, (40, side, side), dtype=np.uint8), np.arange(40) % count
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        data = ["--data", tmp_path / f"{name}.npz"]
        judge = ["--width", 0.1, "--epochs", 1, "--batch-size", 20, "--threads", 1, "--out", tmp_path / f"judge-{name}"]
        assert isda("train", *data, *judge)[2] is None
        words = ["--width", 0.1, "--batch-size", 20, "--epochs", 1, "--judge", tmp_path / f"judge-{name}"]
        made = isda("generate", "train", *data, *words, "--threads", 1, "--out", tmp_path / name)
        assert made[2] is None, made
    told = "generator must be trained on digits"
    for name, why in (("other", "or another version of it"), ("larger", "1x28x28"), ("fewer", "has 2 classes")):
        code = isda("visualize", finished_run, "--generator", tmp_path / name)[2]
        assert told in code
        assert why in code


def test_generated_pixels_are_normalised_as_those_of_the_data_set_are(observed):
    eight_bits = observed.images(torch.arange(5))
    encoder = encoder_of_run(observed)
    pixels = (eight_bits / 255).requires_grad_()
    seen = encoder.normalise(pixels)
    torch.testing.assert_close(seen, observed.trained.pipeline(eight_bits))
    torch.testing.assert_close(encoder.features(seen).double(), observed.features[:5], rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(seen.sum(), pixels)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1 / observed.trained.config.std[0]))


@pytest.mark.parametrize(("name", "normalisation"), [("cifar10", "zca"), ("svhn", "per-image")])
def test_whitened_runs_are_seen_and_differentiated_too(name, normalisation, tmp_path):
    data = digits()
    arrays = {"x_train": data.x_train[:, 0], "y_train": data.y_train, "x_test": data.x_test[:9, 0]}
    np.savez(tmp_path / f"{name}.npz", **{key: value.numpy() for key, value in arrays.items()}, y_test=data.y_test[:9])
    words = "--method pi-model --labels 40 --unlabelled 60 --epochs 1 --width 0.1 --batch-size 20 --threads 1"
    words = ["--data", tmp_path / f"{name}.npz", *words.split(), "--data-root", tmp_path]
    _, err, code = isda("train", *words, "--out", tmp_path / "run")
    assert code is None, err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["normalisation"] == normalisation
    seen = observe(tmp_path / "run", tmp_path)
    encoder, eight_bits = encoder_of_run(seen), seen.images(torch.arange(3))
    pixels = (eight_bits / 255).requires_grad_()
    torch.testing.assert_close(encoder.normalise(pixels), seen.trained.pipeline(eight_bits), rtol=1e-4, atol=1e-4)
    along = torch.randn_like(pixels)
    weights = torch.randn_like(pixels)
    (gradient,) = torch.autograd.grad((weights * encoder.normalise(pixels)).sum(), pixels)
    with torch.no_grad():
        up, down = ((weights * encoder.normalise(pixels + step * along)).double().sum() for step in (1e-3, -1e-3))
    assert float((gradient * along).sum()) == pytest.approx(float(up - down) / 2e-3, rel=0.02, abs=0.02)


def test_draws_are_isdas_and_those_of_an_image_do_not_depend_on_other_images(observed):
    rows = torch.tensor([3, 50, 99])
    a = observed.features[rows]
    assert strength_of(observed) == 0.5
    one = augmented_features(observed, rows, 4, strength=1.0)
    torch.testing.assert_close(augmented_features(observed, rows[1:2], 4, strength=1.0), one[1:2])
    # N(a, lambda Sigma): the same draw at four times the strength is twice as far.
    torch.testing.assert_close(augmented_features(observed, rows, 4, strength=4.0) - a[:, None], 2 * (one - a[:, None]))
    assert not torch.equal(augmented_features(observed, rows, 4, strength=1.0, seed=1), one)
    many = augmented_features(observed, rows[:1], 20_000, strength=0.7)[0]
    covariance = observed.covariance.covariance(int(observed.labels[3]))
    assert (torch.cov(many.T) - 0.7 * covariance).norm() < 0.05 * covariance.norm()
    with pytest.raises(ValueError, match="strength must be"):
        augmented_features(observed, rows, 1, strength=-1.0)


def test_moves_along_a_direction_are_measured_in_standard_deviations_of_the_class(observed):
    rows = observed.rows_of(2)
    direction = torch.randn(observed.features.shape[1])
    moved = features_along(observed, rows, direction, [-1.0, 0.0, 2.0])
    unit = direction.double() / direction.double().norm()
    torch.testing.assert_close(moved[:, 1], observed.features[rows])
    spread = (observed.features[rows] @ unit).std(correction=0)
    torch.testing.assert_close((moved[:, 2] - moved[:, 1]) @ unit, 2 * spread.expand(len(rows)))
    torch.testing.assert_close((moved[:, 0] - moved[:, 1]) @ unit, -spread.expand(len(rows)))
    with pytest.raises(ValueError, match="direction must be"):
        features_along(observed, rows, torch.zeros_like(direction), [1.0])


def test_python_users_reconstruct_and_reach(observed, generator):
    inverter = Inverter(
        observed,
        generator_of_run(load_generator(generator)),
        first=Descent(iterations=30),
        second=Descent(iterations=30),
    )
    rows = choose_rows(observed, 3, seed=4)
    found = inverter.reconstruct(rows)
    assert found.images.shape == (3, 1, 8, 8)
    assert found.images.dtype == torch.uint8
    assert (found.error <= found.start).any()
    torch.testing.assert_close(
        (found.features - found.target).square().sum(1).float(), found.error, rtol=1e-3, atol=1e-3
    )
    # infoGAN's codes stay what they can be.
    assert found.latent[:, 100:].abs().max() <= 1
    alone = inverter.reconstruct(rows[1:2])
    torch.testing.assert_close(alone.error, found.error[1:2], rtol=0.05, atol=1e-3)
    asked = augmented_features(observed, rows, 2)
    moved = inverter.reach(found, asked)
    assert (moved.error <= moved.start).all()
    assert moved.labels.tolist() == found.labels.repeat_interleave(2).tolist()
    torch.testing.assert_close(inverter.reach(found, asked[:, 0]).error, moved.error[::2], rtol=0.05, atol=1e-3)
    with pytest.raises(ValueError, match="features must be 3 rows"):
        inverter.reach(found, asked[:2])
