"""Whitened and per-image normalised runs: the same images in training and later, and a folder that needs no data."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.data import ZCAWhitening, load, normalise_per_image
from isda.lab.engine import RunContext
from isda.lab.tasks.semi_supervised.data import WHITENING_FILE, normaliser_for, split_data, whitening_for
from isda.lab.train import (
    Saving,
    SemiSettings,
    SemiSupervisedClassification,
    load_data,
    load_trained,
    resolve,
    train,
)
from small_runs import ALONE, isda

WORDS = ["--method", "pi-model", "--labels", 40, "--unlabelled", 120, "--batch-size", 40, "--width", 0.1, "--epochs", 2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Small colour images, 192 numbers each, under the names of data sets that are and that are not whitened."""
    folder = tmp_path_factory.mktemp("data")
    labels = np.arange(2100) % 4
    images = np.random.default_rng(0).integers(0, 120, (2100, 8, 8, 3)) + 30 * labels[:, None, None, None]
    smooth = ((images + np.roll(images, 1, 1) + np.roll(images, 1, 2)) // 3).astype(np.uint8)
    arrays = {"x_train": smooth[:2000], "y_train": labels[:2000], "x_test": smooth[2000:], "y_test": labels[2000:]}
    for name in ("cifar10", "svhn"):
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def trained(root, folder, data, *words):
    out = isda("train", "--data", data, "--data-root", root, *WORDS, *words, "--out", folder)
    assert out[2] is None
    return folder


@pytest.fixture(scope="module", params=["cifar10", "svhn"])
def run(request, root, tmp_path_factory):
    """A finished run, and the root of its data set."""
    return trained(root, tmp_path_factory.mktemp("run") / "run", request.param), root


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_the_run_says_how_its_images_are_normalised(run):
    folder, _ = run
    expected = {"cifar10": "zca", "svhn": "per-image"}[config_of(folder)["data"]]
    assert config_of(folder)["normalisation"] == expected
    assert (folder / WHITENING_FILE).exists() == (expected == "zca")


def test_evaluation_measures_what_the_run_reported(run):
    folder, root = run
    out, _, code = isda("evaluate", folder, "--data-root", root, "--json", "-")
    assert code is None
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("error", "nll"):
        assert json.loads(out)[name] == pytest.approx(last[f"test/{name}"], rel=1e-5)


def test_prediction_needs_the_run_folder_alone(run, tmp_path):
    folder, root = run
    moved = shutil.copytree(folder, tmp_path / "moved")
    data = load(config_of(folder)["data"], root)
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, image in zip(paths, data.x_test, strict=False):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    probabilities = load_trained(moved).probabilities(paths)
    out, _, code = isda("predict", moved, *paths, "--json", "-")
    assert code is None
    named = [record["classes"][0]["probability"] for record in json.loads(out)]
    assert named == pytest.approx(probabilities.amax(1).tolist())
    images = data.x_test[:5]
    if config_of(folder)["normalisation"] == "zca":
        shown = ZCAWhitening.read(moved / WHITENING_FILE)(images)
    else:
        shown = normalise_per_image(images)
    expected = load_trained(moved).network(shown).softmax(1)
    torch.testing.assert_close(probabilities, expected)


def zca_run(root, **changes):
    changes = {"data": "cifar10", "method": "pi-model", "labels": 40, "unlabelled": 120, "batch_size": 40} | changes
    settings = SemiSettings(width=0.1, epochs=2, **changes)
    data = load_data(settings, root)
    return resolve(settings, data), data


def zca_job(run, root, folder):
    """The run, before its first step."""
    return SemiSupervisedClassification().start(*run, RunContext(ALONE, folder, root))


def test_training_images_are_whitened_with_the_covariance_of_all_of_them(root, tmp_path):
    config, data = zca_run(root)
    whiten = whitening_for(config, data, tmp_path, ALONE, root)
    pixels = data.x_train.flatten(1).double() / 255
    variances, directions = torch.linalg.eigh(pixels.T.cov(correction=0))
    matrix = directions / (variances + 1e-5).sqrt() @ directions.T
    job = zca_job((config, data), root, tmp_path)
    expected = ((pixels[job.source.pool] - pixels.mean(0)) @ matrix).float()
    torch.testing.assert_close(job.source.images.flatten(1), expected, rtol=1e-3, atol=1e-3)
    everything = whiten(data.x_train).flatten(1).T.cov(correction=0)
    torch.testing.assert_close(everything, torch.eye(192), rtol=0, atol=0.02)
    torch.testing.assert_close(job.evaluation.images, whiten(data.x_test))


def test_held_out_images_are_judged_whitened(root, tmp_path):
    config, data = zca_run(root, held_out=60)
    whiten = whitening_for(config, data, tmp_path, ALONE, root)
    judged = zca_job((config, data), root, tmp_path).evaluation
    assert len(judged.images) == len(judged.labels) == len(judged.indices) == 60
    held = split_data(config, data).evaluation.indices
    torch.testing.assert_close(judged.images, whiten(data.x_train[held]))
    assert torch.equal(judged.labels, data.y_train[held])


def test_the_whitening_is_fitted_once_and_kept_under_the_data_root(root, tmp_path, monkeypatch):
    config, data = zca_run(root)
    first = whitening_for(config, data, tmp_path / "a", ALONE, root)
    assert len(list((root / "zca").glob("cifar10-*.safetensors"))) == 1
    monkeypatch.setattr("isda.lab.data.whitening.ZCAWhitening.fit", lambda *args: pytest.fail("fitted again"))
    again = whitening_for(config, data, tmp_path / "b", ALONE, root)
    assert torch.equal(first.whitening, again.whitening)


def test_a_resumed_run_whitens_as_it_began(root, tmp_path, monkeypatch):
    """Even where the data root is another by now: a fit on another machine would differ in the last bits."""
    run = zca_run(root)
    train(*run, tmp_path / "whole", data_root=root, saving=Saving(steps=1))
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    for name in ("result.json", "model.safetensors", "checkpoints/step-000000008.pt"):
        (tmp_path / "broken" / name).unlink()
    monkeypatch.setattr("isda.lab.data.whitening.ZCAWhitening.fit", lambda *args: pytest.fail("fitted again"))
    train(*run, tmp_path / "broken", data_root=tmp_path / "nowhere")
    whole, broken = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert whole == broken


def test_images_of_another_size_are_refused_by_the_whitening(root, tmp_path):
    config, data = zca_run(root)
    whiten = whitening_for(config, data, tmp_path, ALONE, root)
    with pytest.raises(ValueError, match=r"images must have the shape \(N, \*\(3, 8, 8\)\), got \(2, 3, 5, 5\)"):
        whiten(torch.zeros(2, 3, 5, 5))


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_whitening_is_named(root, tmp_path, damage):
    folder = trained(root, tmp_path / "run", "cifar10")
    path = folder / WHITENING_FILE
    path.write_bytes(path.read_bytes()[:100]) if damage == "truncated" else path.unlink()
    with pytest.raises(ValueError, match=f"{WHITENING_FILE} does not hold a whitening"):
        load_trained(folder)


def test_whitened_images_need_a_whitening(root):
    config, _ = zca_run(root)
    with pytest.raises(ValueError, match="whiten must be given for normalisation='zca'"):
        normaliser_for(config)
