"""The rival losses as methods of `isda train`: options, criteria, learning, resuming, many processes."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rivals_worker import METHODS as SHARED
from rivals_worker import run
from safetensors.torch import load_file

from isda import ISDALoss, losses
from isda.lab import networks
from isda.lab.engine import Processes, State, learning_rate
from isda.lab.engine.options import option_types
from isda.lab.methods.options import ISDAOptions
from isda.lab.methods.registry import METHODS, find_method
from isda.lab.tasks.classification.settings import recipe_for
from isda.lab.train import Classification
from many_processes import side_by_side
from small_runs import HERE, digits, small_config, small_job, train_small

ON_ISDA_TOO = {
    "label-smoothing": losses.LabelSmoothing,
    "disturb-label": losses.DisturbLabel,
    "focal": losses.FocalLoss,
    "lq": losses.LqLoss,
    "confidence-penalty": losses.ConfidencePenalty,
    "center": losses.CenterLoss,
}
CRITERIA = {**ON_ISDA_TOO, "large-margin": losses.LargeMarginLoss, "distribution-net": losses.DistributionNet}
NAMES = [*CRITERIA, *(f"{name}+isda" for name in ON_ISDA_TOO)]
PUBLISHED = {
    "label-smoothing": {"smoothing": 0.1},
    "disturb-label": {"rate": 0.05},
    "focal": {"alpha": 0.5, "gamma": 1.0},
    "lq": {"q": 0.4},
    "confidence-penalty": {"beta": 0.1},
    "center": {"weight": 0.003, "rate": 0.5},
    "large-margin": {"margin": 2},
    "distribution-net": {"sample_weight": 0.1, "samples": 1, "uncertainty_weight": 0.001, "deviation": 5.0},
}


def options_of(text, network="resnet-20", data="cifar10", **shortcuts):
    name, _, words = text.partition(":")
    return find_method(name).resolve(words, recipe_for(network, data), shortcuts)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_published_ones_and_the_grid_holds_them(name):
    method, own = find_method(name), PUBLISHED[name.removesuffix("+isda")]
    options = method.Options(**options_of(name))
    assert {key: getattr(options, key) for key in own} == own
    assert method.grid
    for key, values in method.grid.items():
        assert getattr(options, key) in values
        assert len(set(values)) >= 3
        for value in values:
            assert options_of(f"{name}:{key}={value}")[key] == value


@pytest.mark.parametrize("name", ON_ISDA_TOO)
def test_on_top_of_isda_the_options_of_both_are_understood(name):
    declared = option_types(find_method(f"{name}+isda").Options)
    assert declared.keys() == option_types(ISDAOptions).keys() | option_types(find_method(name).Options).keys()
    assert options_of(f"{name}+isda", "resnet-101")["lambda_0"] == 5.0
    assert options_of(f"{name}+isda", "resnet-101")["covariance"] == "diagonal"
    assert options_of(f"{name}+isda", lambda_0=3.0)["lambda_0"] == 3.0
    assert options_of(f"{name}+isda:lambda_0=2,bound=tilted", lambda_0=3.0)["bound"] == "tilted"


@pytest.mark.parametrize(
    ("network", "data", "rate"),
    [
        ("resnet-110", "cifar100", 0.1),
        ("resnet-110", "cifar10", 0.05),
        ("wide-resnet-28-10", "cifar100", 0.05),
        ("se-resnet-110", "cifar100", 0.05),
        ("resnet-50", "imagenet", 0.05),
    ],
)
def test_the_rate_of_disturbed_labels_is_the_papers(network, data, rate):
    assert options_of("disturb-label", network, data) == {"rate": rate}
    assert options_of("disturb-label+isda", network, data)["rate"] == rate
    assert options_of("disturb-label:rate=0.2", network, data) == {"rate": 0.2}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("focal:gama=1", r"option of method focal must be one of alpha, gamma, got 'gama'; did you mean 'gamma'\?"),
        ("focal:gamma=-1", r"gamma must be a finite number >= 0, got -1\.0"),
        ("focal:lambda_0=1", "option of method focal must be one of alpha, gamma, got 'lambda_0'"),
        ("focal+isda:label_smoothing=0.1", "cross_entropy must have label_smoothing=0"),
        ("focal+isda:covariance=learned", "uncertainty_weight must be 0"),
        ("focal+isda:covariance=ful", r"covariance must be one of .* got 'ful'; did you mean 'full'\?"),
        ("lq:q=2", r"q must be a number in 0\.\.1, got 2\.0"),
        ("lq+isda:rank=2", "rank is for covariance=low_rank or learned, got covariance=full"),
        ("label-smoothing:smoothing=2", r"smoothing must be a number in 0\.\.1, got 2\.0"),
        ("disturb-label:rate=-1", r"rate must be a number in 0\.\.1, got -1\.0"),
        ("center:rate=2", r"rate must be a number in 0\.\.1, got 2\.0"),
        ("center:weight=nan", "weight must be a finite number >= 0, got nan"),
        ("confidence-penalty:beta=inf", "beta must be a finite number >= 0, got inf"),
        ("large-margin:margin=0", "margin must be an integer from 1 to 10, got 0"),
        ("large-margin:margin=1.5", "option margin of method large-margin must be an integer, got '1.5'"),
        ("large-margin:margin=1000000000", "margin must be an integer from 1 to 10, got 1000000000"),
        ("large-margin:base=-1", r"base must be a finite number >= 0, got -1\.0"),
        ("large-margin+isda", "method must be one of .* got 'large-margin.isda'"),
        ("distribution-net:samples=0", "samples must be an integer from 1 to 100, got 0"),
        ("distribution-net:deviation=0", r"deviation must be a finite number > 0, got 0\.0"),
    ],
)
def test_bad_options_get_a_sentence_and_no_folder(method, message, tmp_path):
    folder = tmp_path / "run"
    _, err, code = train_small(folder, "--method", method)
    assert code not in (0, None)
    assert re.search(message, f"{err}{code}")
    assert "Traceback" not in f"{err}{code}"
    assert not folder.exists()


# -- what they compute -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_criterion_is_that_of_isda_losses(name):
    job = small_job(method=name)
    plain = name.removesuffix("+isda")
    assert isinstance(job.method.criterion, CRITERIA[plain])
    if name != plain:
        assert isinstance(job.method.criterion.cross_entropy, ISDALoss)
    batch = next(job.batches(0))
    assert list(job.method(job.network, batch).terms) == [plain]


@pytest.mark.parametrize("name", ["center", "large-margin", "distribution-net"])
def test_features_and_weight_are_the_networks(name):
    """The term is that of another criterion with the same state, fed by hand."""
    job = small_job(method=name, precision="float64")
    criterion = copy.deepcopy(job.method.criterion)
    batch = next(job.batches(0))
    torch.manual_seed(1)
    found = job.method(job.network, batch).terms[name]
    network = job.network
    features = network.features(batch.images)
    given = {"features": features} if name == "center" else {"features": features, "weight": network.classifier.weight}
    torch.manual_seed(1)
    expected = criterion(network.classifier(features), batch.targets, **given)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    one, other = (torch.autograd.grad(loss, network.body.parameters()) for loss in (found, expected))
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_the_centres_rate_falls_with_the_learning_rate():
    config = replace(small_config(method="center:rate=0.4"), schedule="steps", milestones=(1,), lr_factor=0.1)
    job = Classification().start(config, digits(), HERE)
    for step, batch in enumerate([*job.batches(0), *job.batches(1)]):
        before = job.method.criterion.centres.clone()
        job.step(batch, step)
        rate = 0.4 * learning_rate(config, step) / config.lr
        assert float(job.method.criterion.rate) == pytest.approx(rate, rel=1e-6)
        assert not torch.equal(job.method.criterion.centres, before)
    assert rate == pytest.approx(0.04)


def test_annealing_takes_its_share_of_a_run_however_long():
    job = small_job(method="large-margin", epochs=4)
    assert job.method.criterion.gamma == pytest.approx(0.6 / job.config.total_steps)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    expected = 1000 * (1 + 0.6 * 5 / job.config.total_steps) ** -45
    assert job.method.measures() == {"annealing": pytest.approx(expected, rel=1e-4)}
    assert small_job(method="large-margin:gamma=0.5").method.criterion.gamma == 0.5


def test_the_strength_of_isda_grows_and_is_recorded():
    job = small_job(method="lq+isda:lambda_0=2")
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert job.method.measures() == pytest.approx({"strength": 2 * 5 / job.config.total_steps})


def test_disturbed_labels_follow_from_seed_and_step():
    losses_ = []
    for noise in range(2):
        job = small_job(method="disturb-label:rate=0.5", lr=0.0)
        torch.rand(noise)
        batch = next(job.batches(0))
        for step in range(2):
            job.step(batch, step)
            losses_.append(float(job.sums.pop("loss")))
    assert losses_[:2] == losses_[2:]
    assert losses_[0] != losses_[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_moves_those_of_the_method_too(name):
    job = small_job(method=name)
    trained = [*job.network.parameters(), *job.method.parameters()]
    before = [p.detach().clone() for p in trained]
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert not any(torch.equal(p, q) for p, q in zip(before, trained, strict=True))
    assert (len(list(job.method.parameters())) > 0) == (name == "distribution-net")


# -- as a user runs them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_command_trains_and_the_loss_falls(name, tmp_path):
    _, err, code = train_small(tmp_path / "run", "--method", name, "--epochs", 4, "--evaluate-every", 4)
    assert code in (0, None), err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # While large margin lets its margin in, the loss itself grows: the error tells.
    figure = "train/error" if name == "large-margin" else f"train/{name.removesuffix('+isda')}"
    assert lines[-1][figure] < 0.9 * lines[0][figure]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == name


STATEFUL = ["center+isda", "large-margin", "distribution-net", "disturb-label+isda:rate=0.5"]


@pytest.mark.parametrize("method", STATEFUL)
def test_a_resumed_run_ends_in_the_same_bits(method, tmp_path):
    """The state goes through a file, as a checkpoint does."""
    settings = {"method": method, "ema": 0.9, "width": 0.1}
    whole, resumed = small_job(**settings), small_job(**settings)
    for step, batch in enumerate(whole.batches(0)):
        whole.step(batch, step)
        if step == 2:
            torch.save(tuple(whole.state()), tmp_path / "state.pt")
    resumed.restore(State(*torch.load(tmp_path / "state.pt", weights_only=True)))
    for step, batch in enumerate(resumed.batches(0, start=3), start=3):
        resumed.step(batch, step)
    for group, tensors in whole.state().tensors.items():
        for key, value in resumed.state().tensors[group].items():
            assert torch.equal(value, tensors[key]), f"{group} {key}"


@pytest.mark.parametrize(
    "method",
    ["center+isda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("distribution-net", "large-margin"))],
)
def test_a_compiled_network_learns_the_same(method, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    results = []
    for compiled in (False, True):
        job = small_job(method=method, precision="float64", width=0.1, compile=compiled)
        assert (job.forward is not job.network) == compiled
        for step, batch in enumerate(job.batches(0)):
            job.step(batch, step)
        results.append(job.state().tensors)
    for group, tensors in results[0].items():
        for key, value in tensors.items():
            torch.testing.assert_close(results[1][group][key], value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("method", NAMES)
def test_half_precision_and_averaged_weights(method):
    job = small_job(method=method, precision="bfloat16", ema=0.9, width=0.1)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    metrics = job.finish_epoch(1, 5)
    assert metrics["train/loss"] < 10
    assert metrics["test/nll"] < 10


# -- two processes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run(folder / "one", Processes(0, 1, torch.device("cpu")))
    side_by_side(2, Path(__file__).with_name("rivals_worker.py"), folder / "two")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("name", SHARED)
def test_two_processes_train_what_one_does(one_and_two, name):
    one, two = (sorted((folder / name / "checkpoints").iterdir())[-1] for folder in one_and_two)
    assert one.name == two.name
    for group in ("model", "method"):
        expected, found = (load_file(folder / f"{group}.safetensors") for folder in (one, two))
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9, msg=f"{group} {key}")
    lines = [(folder / name / "metrics.jsonl").read_text().splitlines() for folder in one_and_two]
    for ours, theirs in zip(*([json.loads(line) | {"seconds": 0} for line in part] for part in lines), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-9)


def test_the_uncertainty_loss_of_those_runs_pulled(one_and_two):
    """So that its hinge over all processes was put to the test."""
    one, _ = one_and_two
    state = load_file(sorted((one / "distribution-net" / "checkpoints").iterdir())[-1] / "method.safetensors")
    assert bool(state["criterion.head.bias"].any())


# -- dropout, the rival that is a setting of the network ---------------------------------------------------------------


def test_dropout_is_a_choice_for_resnet_110_and_always_on_for_wide_resnet_28_10():
    def rates(name, **options):
        with torch.device("meta"):
            network = networks.create(name, num_classes=10, **options)
        return {module.p for module in network.modules() if isinstance(module, torch.nn.Dropout)}

    assert rates("resnet-110") == {0.0}
    assert rates("resnet-110", dropout=0.3) == {0.3}
    assert rates("wide-resnet-28-10") == {0.3}


def test_every_rival_is_listed():
    assert set(NAMES) <= set(METHODS)
