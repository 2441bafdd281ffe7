"""Runs of segmentation: batches, steps at any size, what is measured, kills, and several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from segmentation_worker import run

from isda.lab.data.segmentation import load
from isda.lab.engine import Saving, learning_rate, train
from isda.lab.tasks.segmentation.data import SegmentationBatches, evaluation_batches
from isda.lab.tasks.segmentation.settings import SegmentationConfig
from many_processes import side_by_side
from resumable_runs import outcome, saved
from segmentation_runs import ALONE, CLASSES, drawn, scene, small_config, small_job

HERE = Path(__file__).parent


# -- batches ---------------------------------------------------------------------------------------------------------


def test_batches_do_not_depend_on_processes_nor_on_where_an_epoch_is_taken_up():
    config = small_config()
    whole = list(SegmentationBatches(drawn().train, config).epoch(3))
    assert [len(batch.images) for batch in whole] == [4, 4]
    parts = [list(SegmentationBatches(drawn().train, config, rank, 3).epoch(3)) for rank in range(3)]
    for step, batch in enumerate(whole):
        for name in ("images", "targets", "indices"):
            joined = torch.cat([getattr(part[step], name) for part in parts])
            assert torch.equal(joined, getattr(batch, name))
    (last,) = SegmentationBatches(drawn().train, config).epoch(3, start=1)
    assert torch.equal(last.images, whole[1].images)
    other = next(iter(SegmentationBatches(drawn().train, config).epoch(4)))
    assert not torch.equal(other.images, whole[0].images)


def test_images_decoded_per_batch_make_the_same_batches_as_images_in_memory(monkeypatch):
    config = small_config()
    inside = list(SegmentationBatches(drawn().train, config).epoch(0))
    judged = list(evaluation_batches(drawn().validation, torch.arange(5), config, torch.device("cpu")))
    monkeypatch.setattr("isda.lab.data.segmentation.IN_MEMORY_BYTES", 0)
    data = load(drawn().source)
    assert data.train.decoded is None
    outside = list(SegmentationBatches(data.train, config, workers=2).epoch(0))
    assert all(torch.equal(a.images, b.images) for a, b in zip(inside, outside, strict=True))
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(inside, outside, strict=True))
    alone = list(evaluation_batches(data.validation, torch.arange(5), config, torch.device("cpu")))
    assert torch.equal(torch.cat([one.images for one in alone]), torch.cat([one.images for one in judged]))
    assert torch.equal(torch.cat([one.targets for one in alone]), torch.cat([one.targets for one in judged]))


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_stride", [8, 16, 32])
@pytest.mark.parametrize("crop", ["17", "24x40", "33x50"])
@pytest.mark.parametrize("network", ["pspnet-resnet-18", "deeplab-v3-resnet-18"])
def test_any_crop_and_output_stride_takes_a_step(network, crop, output_stride):
    job = small_job(network=network, crop=crop, output_stride=output_stride, method="isda:covariance=full")
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    job.check()
    assert job.method.criteria["main"].covariance.count.sum() > 0


def test_a_step_is_plain_momentum_on_the_mean_over_pixels_with_the_poly_schedule():
    """Two steps by hand in float64: no dropout, batch norm frozen, cross-entropy of both heads."""
    options = {"method": "cross-entropy", "precision": "float64", "dropout": 0.0, "freeze_batch_norm": True}
    job, other = (small_job(**options, weight_decay=0.01) for _ in range(2))
    momentum = {name: torch.zeros_like(value) for name, value in other.network.named_parameters()}
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
        outputs = other.network.outputs(batch.images)
        loss = 0
        for weight, logits in ((1.0, outputs.logits), (0.4, outputs.auxiliary_logits)):
            fine = F.interpolate(logits, batch.targets.shape[1:], mode="bilinear", align_corners=True)
            loss += weight * F.cross_entropy(fine, batch.targets, ignore_index=255)
        slopes = torch.autograd.grad(loss, list(other.network.parameters()))
        rate = 0.05 * (1 - step / 4) ** 0.9
        assert learning_rate(job.config, step) == pytest.approx(rate)
        with torch.no_grad():
            for (name, value), slope in zip(other.network.named_parameters(), slopes, strict=True):
                momentum[name] = 0.9 * momentum[name] + slope + 0.01 * value
                value -= rate * momentum[name]
    for ours, theirs in zip(job.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("changes", [{"channels_last": True}, {"precision": "bfloat16"}, {"ema": 0.9}])
def test_options_of_every_run_work_here(changes):
    job = small_job(**changes)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert 0 <= job.evaluate()["miou"] <= 100


def test_frozen_batch_norm_stays_where_it_was():
    job = small_job(freeze_batch_norm=True)
    before = {name: value.clone() for name, value in job.network.named_buffers()}
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    job.evaluate()
    job.step(batch, 2)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in job.network.named_buffers())


# -- measuring -------------------------------------------------------------------------------------------------------


def test_measures_are_those_of_a_confusion_matrix_counted_by_hand():
    job = small_job()
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    measured = job.evaluate()
    job.network.eval()
    counts = torch.zeros(3, 3)
    for index in range(len(drawn().validation)):
        image, labels = drawn().validation[index]
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (job.config.mean, job.config.std))
        seen = job.network(((image / 255 - mean) / std).unsqueeze(0)).argmax(1)[0]
        for truth, guess in zip(labels.flatten().tolist(), seen.flatten().tolist(), strict=True):
            if truth != 255:
                counts[truth, guess] += 1
    hits = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - hits
    assert measured["miou"] == pytest.approx(100 * float((hits / union)[union > 0].mean()), rel=1e-6)
    assert measured["accuracy"] == pytest.approx(100 * float(hits.sum() / counts.sum()), rel=1e-6)


def test_a_run_leaves_figures_per_class_pictures_and_learns(tmp_path):
    config = small_config(epochs=12, method="isda:lambda_0=1", evaluate_every=6, multi_scale=True)
    result = train(config, drawn(), tmp_path / "run")
    assert list(result["per_class"]["iou"]) == list(CLASSES)
    assert result["miou"] == pytest.approx(100 * sum(result["per_class"]["iou"].values()) / 3)
    assert result["miou"] > 50  # of what three classes by chance would have: about 20
    assert {"miou_multi_scale", "miou_multi_scale_flip", "accuracy"} <= set(result)
    pictures = sorted((tmp_path / "run" / "pictures").iterdir())
    assert [picture.name.split("-")[0] for picture in pictures] == ["1", "2", "3", "4"]
    assert Image.open(pictures[0]).format == "PNG"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "validation/miou" in line] == [6, 12]
    assert lines[-1]["strength"] == pytest.approx(1.0)
    assert SegmentationConfig.read(tmp_path / "run" / "config.json").differences(config) == {}


# -- interruptions ---------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_after_its_last_step_concludes_alike(tmp_path):
    config = small_config(method="cross-entropy")
    train(config, drawn(), tmp_path / "run", saving=Saving(steps=2))
    before = outcome(tmp_path / "run")
    for name in ("result.json", "model.safetensors", "pictures/1-scene-011.png"):
        (tmp_path / "run" / name).unlink()
    train(config, drawn(), tmp_path / "run", saving=Saving(steps=2))
    assert outcome(tmp_path / "run") == before


# -- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["frozen", "synchronised"])
def one_and_two(tmp_path_factory, request) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    run(Path(drawn().source), folder / "one", ALONE, request.param)
    side_by_side(2, HERE / "segmentation_worker.py", drawn().source, folder / "two", request.param)
    return folder / "one", folder / "two"


@pytest.mark.parametrize("group", ["model", "method"])
def test_two_processes_equal_one(one_and_two, group):
    """A batch of 5 leaves 3 and 2 images, and other numbers of ignored pixels."""
    one, two = (saved(folder)[group] for folder in one_and_two)
    assert one.keys() == two.keys()
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-8, atol=1e-9)


def test_figures_are_those_of_all_processes(one_and_two):
    lines = []
    for folder in one_and_two:
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        # The accuracy of crops is a mean over processes, whose numbers of pixels differ.
        left_out = ("seconds", "train/accuracy")
        lines.append([{k: v for k, v in record.items() if k not in left_out} for record in records])
    for one, two in zip(*lines, strict=True):
        assert two == pytest.approx(one, rel=1e-8)
    one, two = (json.loads((folder / "result.json").read_text())["per_class"]["iou"] for folder in one_and_two)
    assert two == pytest.approx(one)


def test_scenes_hold_every_class_and_ignored_pixels():
    _, labels = scene(3)
    assert set(labels.flatten().tolist()) == {0, 1, 2, 255}
