"""The paper chooses its settings on a quarter of the labelled images, held out and put back for the final runs."""

import json

import pytest
import torch

from isda.lab.tasks.semi_supervised.data import split_data
from semi_runs import SEMI_WORDS, semi_config, semi_job
from small_runs import digits, isda

QUARTER = {"method": "mean-teacher", "labels": 40, "held_out_labels": 0.25}


def parts(**changes):
    return split_data(semi_config(**(QUARTER | changes)), digits())


@pytest.mark.parametrize("seed", [0, 3])
def test_the_quarter_is_one_of_the_labelled_images_and_the_others_stay(seed):
    whole, held = parts(seed=seed, held_out_labels=None), parts(seed=seed)
    assert (len(held.labelled), len(held.evaluation.indices)) == (30, 10)
    together = torch.cat([held.labelled, held.evaluation.indices]).sort().values
    assert torch.equal(together, whole.labelled.sort().values)
    assert torch.equal(held.unlabelled, whole.unlabelled)
    assert held.evaluation.images is digits().x_train
    assert held.evaluation.labels is digits().y_train
    assert digits().y_train[held.evaluation.indices].bincount().tolist() == [1] * 10


def test_methods_are_judged_by_the_same_images_and_seeds_by_others():
    one, other, another = (parts(**changes) for changes in ({}, {"method": "vat+isda"}, {"seed": 1}))
    assert torch.equal(one.evaluation.indices, other.evaluation.indices)
    assert not torch.equal(one.evaluation.indices, another.evaluation.indices)


def test_a_run_sees_the_quarter_neither_with_nor_without_labels():
    job = semi_job(**QUARTER)
    assert len(job.source.pool) == job.config.train_images == 230
    assert (len(job.source.labelled), job.config.labels, job.config.test_images) == (30, 40, 10)
    assert not torch.isin(job.source.pool, parts().evaluation.indices).any()
    assert len(job.evaluation.images) == 10
    assert job.config.describe().startswith(
        "mean-teacher on digits, fast-cnn, 40 labelled, 10 of them held out and 200 unlabelled images"
    )


def test_the_command_calls_the_figures_held_out(tmp_path):
    words = ["--method", "pi-model+isda", *SEMI_WORDS, "--labels", 40, "--held-out-labels", 0.25]
    out, _, code = isda("train", *words, "--out", tmp_path)
    assert code is None
    assert "held-out error" in out
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert {"held-out/error", "held-out/nll", "held-out/calibration"} <= line.keys()
        assert not any(name.startswith("test/") for name in line)
        # Of ten images.
        assert line["held-out/error"] == pytest.approx(10 * round(line["held-out/error"] / 10))
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["held_out_labels"], stored["evaluated_on"], stored["test_images"]) == (0.25, "held-out", 10)
    assert json.loads((tmp_path / "result.json").read_text())["evaluated_on"] == "held-out"
    out, _, code = isda("evaluate", tmp_path, "--json", "-")
    assert code is None
    for name in ("error", "nll", "calibration"):
        assert json.loads(out)[name] == pytest.approx(lines[-1][f"held-out/{name}"], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out_labels": 1.0}, "held_out_labels must be a share from 0 to below 1, got 1.0"),
        ({"held_out_labels": -0.1}, "held_out_labels must be a share from 0 to below 1, got -0.1"),
        ({"held_out_labels": float("nan")}, "held_out_labels must be a share from 0 to below 1, got nan"),
        ({"held_out_labels": 0.01}, "held_out_labels must hold out some of labels=40 and not all, got 0.01"),
        ({"held_out_labels": 0.99}, "held_out_labels must hold out some of labels=40 and not all, got 0.99"),
        ({"held_out": 100}, "held_out and held_out_labels must not be given together"),
        ({"labelled_per_batch": 31}, "labelled_per_batch must be from 1 to labels=30, or published, got 31"),
    ],
)
def test_what_cannot_be_held_out_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        semi_config(**(QUARTER | changes))
