"""Long tails as a user runs them: --imbalance, methods, figures of head and tail, resuming."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
import torch.nn.functional as F

from isda.functional import class_balanced_weights
from isda.lab.engine import State
from isda.lab.tasks.classification.methods import find_method
from isda.lab.tasks.classification.methods.long_tail import BalancedBatches
from isda.lab.tasks.classification.settings import class_parts, counts_for, recipe_for
from isda.lab.tasks.common.data import split_data
from isda.lab.train import Config, Settings, load_trained, resolve
from small_runs import digits, small_job, train_small

PLAIN = ("logit-adjustment", "ldam", "class-balanced")
NAMES = (*PLAIN, *(f"{name}+isda" for name in PLAIN), "risda", "metasaug")
TAIL = {"imbalance": 20, "labels": 200, "width": 0.1}


def prior(config):
    return torch.tensor(counts_for(config, 10), dtype=torch.float64)


# -- the data ----------------------------------------------------------------------------------------------------------


def test_class_sizes_fall_exponentially_and_what_judges_stays_as_it_is():
    config = resolve(Settings(imbalance=100, network="fast-cnn", method="cross-entropy"), digits())
    training, evaluation = split_data(config, digits())
    counts = digits().y_train[training].bincount(minlength=10)
    smallest = int(digits().y_train.bincount().min())
    assert counts.tolist() == [int(smallest * 100 ** (-c / 9) + 1e-6) for c in range(10)]
    assert config.class_counts == tuple(counts.tolist())
    assert config.train_images == int(counts.sum())
    assert torch.equal(evaluation.labels, digits().y_test)
    assert "(imbalance 100)" in config.describe()


def test_a_number_of_images_keeps_the_profile_and_the_seed_draws_them():
    configs = [resolve(Settings(imbalance=50, labels=300, seed=seed), digits()) for seed in (0, 0, 1)]
    drawn = [split_data(config, digits())[0] for config in configs]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert configs[0].class_counts == configs[2].class_counts
    counts = torch.tensor(configs[0].class_counts)
    exact = 50.0 ** -(torch.arange(10) / 9)
    assert int(counts.sum()) == 300
    assert ((counts - 300 * exact / exact.sum()).abs() < 1).all()


def test_without_an_imbalance_counts_are_those_of_all_images_or_left_to_the_seed():
    everything = resolve(Settings(), digits())
    assert everything.imbalance is None
    assert sum(everything.class_counts) == len(digits().y_train)
    assert resolve(Settings(labels=100, batch_size=20), digits()).class_counts == ()
    assert counts_for(resolve(Settings(labels=100, batch_size=20), digits()), 10) == [1] * 10
    assert not any(figure.name.startswith("error_") and figure.name != "error_top5" for figure in everything.figures)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--imbalance", "0.5"], r"imbalance must be a finite number >= 1, got 0\.5"),
        (["--imbalance", "nan"], "imbalance must be a finite number >= 1, got nan"),
        (["--imbalance", "100000"], "imbalance=100000 does not fit digits: .* leaves no sample of the last class"),
        (
            ["--imbalance", "100", "--labels", "900"],
            r"imbalance=100 does not fit digits: size=900 asks for",
        ),
        (["--imbalance", "10", "--method", "vat"], "method vat does not support --imbalance"),
        (["--method", "logit-adjustment:tau=-1"], r"tau must be a finite number >= 0, got -1\.0"),
        (["--method", "ldam:s=nan"], "scale must be a finite number >= 0, got nan"),
        (["--method", "ldam:drw=true,drw_start=2"], r"drw_start must lie in 0\.\.1, got 2\.0"),
        (["--method", "class-balanced:beta=1"], r"beta must be in \[0, 1\), got 1\.0"),
        (["--method", "risda:alpha=-1"], r"alpha must be a finite number >= 0, got -1\.0"),
        (["--method", "risda:memory=1"], r"memory must be in \[0, 1\), got 1\.0"),
        (["--method", "metasaug:meta_lr=-1"], r"lr must be a finite number >= 0, got -1\.0"),
        (["--method", "metasaug:bound=tilted"], "option of method metasaug must be one of .* got 'bound'"),
    ],
)
def test_bad_words_get_a_sentence_and_no_folder(words, message, tmp_path):
    _, err, code = train_small(tmp_path / "run", *words)
    assert code not in (0, None)
    assert re.search(message, f"{err}{code}")
    assert "Traceback" not in f"{err}{code}"
    assert not (tmp_path / "run").exists()


# -- what is measured --------------------------------------------------------------------------------------------------


def test_head_middle_and_tail_are_measured_and_make_up_the_error(tmp_path):
    out, err, code = train_small(
        tmp_path / "run", "--imbalance", 100, "--labels", 300, "--method", "logit-adjustment", "--epochs", 1
    )
    assert code in (0, None), err
    assert "imbalance 100" in out + err
    config = Config.read(tmp_path / "run" / "config.json")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    parts = class_parts(config.class_counts)
    assert list(parts) == ["head", "middle", "tail"]
    sizes = {name: int(torch.isin(digits().y_test, torch.tensor(part)).sum()) for name, part in parts.items()}
    overall = sum(result[f"error_{name}"] * size for name, size in sizes.items()) / sum(sizes.values())
    assert overall == pytest.approx(result["error"])
    assert [figure.name for figure in config.figures[:4]] == ["error", "error_head", "error_middle", "error_tail"]
    again = load_trained(tmp_path / "run").measure(digits(), torch.device("cpu"))
    assert again["error_tail"] == pytest.approx(result["error_tail"])


# -- what they compute -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_in_the_grid_and_on_top_of_isda_strengths_are_searched(name):
    method, recipe = find_method(name), recipe_for("resnet-20")
    grid = method.grid_for(recipe)
    options = method.Options(**method.resolve("", recipe))
    assert all(getattr(options, key) in values for key, values in grid.items())
    assert list(grid) == (["lambda_0"] if name not in PLAIN else list(method.grid))


def test_the_term_of_each_is_its_equation():
    for name in PLAIN:
        job = small_job(method=name, precision="float64", **TAIL)
        batch = next(job.batches(0))
        found = job.method(job.network, batch).terms[name]
        logits, counts = job.network(batch.images), prior(job.config)
        if name == "logit-adjustment":
            expected = F.cross_entropy(logits + (counts / counts.sum()).log(), batch.targets)
        elif name == "ldam":
            margins = 0.5 * (counts / counts.min()) ** -0.25
            moved = logits - F.one_hot(batch.targets, 10) * margins[batch.targets].unsqueeze(1)
            expected = F.cross_entropy(moved, batch.targets)
        else:
            weights = class_balanced_weights(counts, 0.9999)
            weights = weights / (weights * counts / counts.sum()).sum()
            expected = (weights[batch.targets] * F.cross_entropy(logits, batch.targets, reduction="none")).mean()
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_weights_come_in_after_their_share_of_the_run():
    job = small_job(method="ldam:drw=true,drw_start=0.5", **TAIL)
    half = job.config.total_steps // 2
    for step, batch in enumerate([*job.batches(0), *job.batches(1)]):
        job.step(batch, step)
        weights = job.method.criterion.class_weight
        assert bool((weights == 1).all()) == (step < half)
    counts = prior(job.config)
    assert float((weights.double() * counts).sum() / counts.sum()) == pytest.approx(1.0, abs=1e-5)
    assert weights[-1] > weights[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_moves_and_the_loss_falls(name):
    job = small_job(method=name, **TAIL)
    before = [p.detach().clone() for p in job.network.parameters()]
    batch, losses = next(job.batches(0)), []
    for step in range(12):
        job.step(batch, step)
        losses.append(float(job.sums["loss"]))
        job.sums = {}
    assert losses[-1] < 0.8 * losses[0]
    assert not any(torch.equal(p, q) for p, q in zip(before, job.network.parameters(), strict=True))
    assert not [p for p in job.method.parameters() if p.requires_grad]


def test_metasaug_moves_scales_by_balanced_batches_and_risda_learns_confusions():
    job = small_job(method="metasaug:lambda_0=5", **TAIL)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert job.method.criterion.covariance.log_scale.abs().max() > 0
    job = small_job(method="risda:lambda_0=5", **TAIL)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert job.method.criterion.covariance.known.sum() > 5


def test_balanced_batches_are_a_function_of_seed_and_step_and_are_shared_out():
    job = small_job(method="metasaug", **TAIL)
    balanced, labels = BalancedBatches(job.source, 25), digits().y_train
    indices = balanced.indices(7)
    assert torch.equal(indices, balanced.indices(7))
    assert not torch.equal(indices, balanced.indices(8))
    assert labels[indices].bincount().tolist() == [3] * 10
    assert torch.isin(indices, job.source.indices).all()
    assert torch.equal(balanced.batch(7, 0).targets, labels[indices])


# -- interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["ldam+isda:drw=true,drw_start=0.4", "risda:drw_start=0.4", "metasaug:drw_start=0.4"]
)
def test_a_resumed_run_ends_in_the_same_bits(method, tmp_path):
    """The state goes through a file, as a checkpoint does: confusions, scales, the moments of their optimiser."""
    settings = {"method": method, "ema": 0.9, "epochs": 1} | TAIL
    whole, resumed = small_job(**settings), small_job(**settings)
    for step, batch in enumerate(whole.batches(0)):
        whole.step(batch, step)
        if step == 2:
            torch.save(tuple(copy.deepcopy(whole.state())), tmp_path / "state.pt")
    resumed.restore(State(*torch.load(tmp_path / "state.pt", weights_only=True)))
    torch.rand(5)
    for step, batch in enumerate(resumed.batches(0, start=3), start=3):
        resumed.step(batch, step)
    for group, tensors in whole.state().tensors.items():
        for key, value in resumed.state().tensors[group].items():
            assert torch.equal(value, tensors[key]), f"{group} {key}"
