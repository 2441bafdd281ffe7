"""lambda_0=auto in runs of every task: a tenth is held out, matched after each epoch, put back for the last fifth."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F

import segmentation_runs
from isda.lab.tasks.common.matching import Withheld
from isda.losses import ISDALoss
from oracles import jensen_bound
from semi_runs import semi_job
from small_runs import digits, isda, small_job, train_small

AUTO = "isda:lambda_0=auto"


def train_epoch(job, epoch):
    for step, batch in enumerate(job.batches(epoch), start=epoch * job.config.steps_per_epoch):
        job.step(batch, step)
    return job.finish_epoch(epoch + 1, (epoch + 1) * job.config.steps_per_epoch)


def seen(job, epoch):
    return set(torch.cat([batch.indices for batch in job.batches(epoch)]).tolist())


def criteria(job):
    return [module for module in job.method.modules() if isinstance(module, ISDALoss)]


def test_the_tenth_is_held_out_until_the_last_fifth_and_the_number_of_steps_stays():
    job, plain = small_job(method=AUTO, epochs=5), small_job(method="cross-entropy", epochs=5)
    withheld = set(job.withheld.positions.tolist())
    everything = set(plain.source.indices.tolist())
    assert len(withheld) == 10
    assert withheld < everything
    counts = digits().y_train[job.withheld.positions].bincount(minlength=10)
    assert counts.tolist() == [1] * 10
    for epoch in range(4):
        assert not seen(job, epoch) & withheld
    assert seen(job, 4) == everything
    assert [len(list(job.batches(epoch))) for epoch in range(5)] == [5] * 5
    assert job.config.steps_per_epoch == plain.config.steps_per_epoch == 5


@pytest.mark.parametrize(("epochs", "without"), [(1, 1), (4, 4), (5, 4), (10, 8), (160, 128)])
def test_how_many_epochs_do_without_the_held_out_images(epochs, without):
    assert Withheld.draw(torch.arange(20), None, epochs, seed=0).epochs == without


def test_the_strength_is_that_of_the_equation_on_images_without_augmentation():
    job = small_job(method=AUTO, epochs=5, augment="translate", precision="float64")
    train_epoch(job, 0)
    criterion, network = criteria(job)[0], job.network.eval()
    # The epoch's images, in its order, and those held out.
    source = job.source
    trained, held = source.order(0).flatten(), job.withheld.positions
    with torch.no_grad():
        logits = [network(job.pipeline(source.images[part]).double()) for part in (trained, held)]
    labels = [source.labels[part] for part in (trained, held)]
    sigmas = torch.stack([criterion.covariance.covariance(c) for c in range(10)])

    def loss_at(strength):
        return float(jensen_bound(logits[0], labels[0], network.classifier.weight.detach(), sigmas, strength).mean())

    target = float(F.cross_entropy(logits[1], labels[1]))
    (solution,) = criterion.schedule.solutions
    if target <= loss_at(0.0):
        assert solution == 0
    else:
        assert loss_at(solution * 0.999) < target < loss_at(solution * 1.001)


def test_matching_stops_when_the_images_are_put_back():
    job = small_job(method=AUTO, epochs=5)
    strengths = [train_epoch(job, epoch)["strength"] for epoch in range(5)]
    assert len(criteria(job)[0].schedule.solutions) == 4
    assert strengths[4] == strengths[3]


def test_statistics_and_weights_do_not_change_by_matching():
    job = small_job(method=AUTO, epochs=5)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    before = {name: tensor.clone() for name, tensor in job.state().tensors["model"].items()}
    counts = criteria(job)[0].covariance.count.clone()
    modes = [module.training for module in job.network.modules()]
    job.finish_epoch(1, 5)
    assert all(torch.equal(before[name], tensor) for name, tensor in job.state().tensors["model"].items())
    assert torch.equal(counts, criteria(job)[0].covariance.count)
    assert modes == [module.training for module in job.network.modules()]


@pytest.mark.parametrize("method", ["mixup+isda:lambda_0=auto", "isda-tilted:lambda_0=auto", "sam+isda:lambda_0=auto"])
def test_other_methods_with_isda_are_matched_too(method):
    job = small_job(method=method, width=0.1)
    metrics = train_epoch(job, 0)
    assert len(criteria(job)[0].schedule.solutions) == 1
    assert math.isfinite(metrics["strength"])


def test_semi_supervised_runs_hold_out_labels():
    job = semi_job(method="mean-teacher+isda:lambda_0=auto", epochs=5)
    held = job.source.pool[job.source.labelled[job.withheld.positions]]
    assert len(held) == 5
    for epoch in range(5):
        labelled = set(torch.cat([batch.indices for batch in job.batches(epoch)]).tolist())
        assert bool(labelled & set(held.tolist())) == (epoch == 4)
    train_epoch(job, 0)
    assert len(criteria(job)[0].schedule.solutions) == 1
    images = torch.cat([batch.images for batch in job.clean_batches(job.withheld.positions)])
    targets = torch.cat([batch.targets for batch in job.clean_batches(job.withheld.positions)])
    assert torch.equal(targets, digits().y_train[held])
    assert torch.equal(images, job.source.images[job.source.labelled[job.withheld.positions]])


def test_both_classifiers_of_a_segmentation_network_are_matched():
    job = segmentation_runs.small_job(method=AUTO, epochs=5)
    (held,) = job.source.withheld.positions.tolist()
    for epoch in range(5):
        assert (held in job.source.order(epoch)) <= (epoch == 4)
    metrics = train_epoch(job, 0)
    assert [len(criterion.schedule.solutions) for criterion in criteria(job)] == [1, 1]
    assert metrics["strength"] == criteria(job)[0].strength


def test_as_a_user_runs_it(tmp_path):
    _, err, code = train_small(tmp_path / "run", "--lambda-0", "auto", "--epochs", 5)
    assert (err, code) == ("", None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len({line["strength"] for line in lines}) > 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method_options"]["lambda_0"] == "auto"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "explicit", "--lambda-0", "auto"), "only ISDALoss supports 'auto'"),
        (("--method", "isda:lambda_0=auto,schedule=constant"), "schedule must not be given with lambda_0='auto'"),
        (("--labels", 9, "--batch-size", 4, "--lambda-0", "auto"), "needs at least 10 training images"),
        (("--lambda-0", "automatic"), "lambda-0"),
    ],
)
def test_what_cannot_be_matched_is_refused_before_a_folder_is_made(tmp_path, words, message):
    out, err, code = isda("train", "--network", "fast-cnn", "--width", 0.1, "--out", tmp_path / "run", *words)
    assert message in f"{out}{err}{code}"
    assert not (tmp_path / "run").exists()
