"""ISDA and explicit augmentation as methods of `isda train`: options, the loss, covariances of one's own."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

from isda.covariance import KINDS, DiagonalCovariance
from isda.lab.engine.options import option_types
from isda.lab.methods.options import ISDAOptions
from isda.lab.methods.registry import METHODS, find_method
from isda.lab.tasks.classification.settings import recipe_for
from small_runs import digits, small_config, small_job


class Variances(DiagonalCovariance):
    """A covariance model of a user's own."""


def options_of(text, **shortcuts):
    name, _, words = text.partition(":")
    return find_method(name).resolve(words, recipe_for("resnet-20", "cifar10"), shortcuts)


def test_the_text_goes_over_the_setting_and_the_setting_over_the_recipe():
    assert options_of("isda")["lambda_0"] == 0.5
    assert options_of("isda", lambda_0=3.0)["lambda_0"] == 3.0
    assert options_of("isda:lambda_0=1", lambda_0=3.0)["lambda_0"] == 1.0
    assert options_of("isda-tilted")["bound"] == "tilted"
    assert "lambda_0" not in options_of("cross-entropy", lambda_0=3.0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_covariance_model_is_an_option(kind):
    made_by = [vars(base).get("__init__") for base in KINDS[kind].__mro__ if base.__module__.startswith("isda")]
    names = {
        parameter.name
        for function in made_by
        if function is not None
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert names - {"device", "dtype", "sync", "process_group"} <= option_types(ISDAOptions).keys()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("isda:covariance=ful", "covariance must be one of full, .*, got 'ful'; did you mean 'full'"),
        ("isda:covariance=identity,memory=9", "memory is for covariance=full or .*, got covariance=identity"),
        ("isda:rank=3", "rank is for covariance=low_rank or learned, got covariance=full"),
        ("isda:lambda_0=-1", "lambda_0 must be a finite number >= 0, got -1.0"),
        ("isda:schedule=linar", "schedule must be one of linear, constant, got 'linar'"),
        ("isda:lambda0=1", "option of method isda must be one of .*, got 'lambda0'; did you mean 'lambda_0'"),
        ("isda:lambda_0=strong", "option lambda_0 of method isda must be a number, got 'strong'"),
        ("isda-tilted:bound=jensen", "method 'isda-tilted' settles bound=tilted, got bound=jensen"),
        ("isad", "method must be one of .*, got 'isad'; did you mean 'isda'"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        options_of(text)


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_isda_is_the_papers_bound_with_a_strength_that_grows_over_the_run(schedule):
    job = small_job(method=f"isda:lambda_0=2,schedule={schedule}", precision="float64")
    network, total = job.network, job.config.total_steps
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step, batch in zip(range(3), job.batches(0), strict=False):
        with torch.no_grad():
            features = network.features(batch.images)
            seen.append((features, batch.targets))
            logits, weight = network.classifier(features), network.classifier.weight
            everything, labels = (torch.cat(column) for column in zip(*seen, strict=True))
            strength = 2.0 * (step / total if schedule == "linear" else 1.0)
            rows = []
            for z, y in zip(logits, batch.targets.tolist(), strict=True):
                sigma = torch.cov(everything[labels == y].T, correction=0).reshape(len(features[0]), -1)
                gaps = weight - weight[y]
                rows.append(torch.logsumexp(z + strength / 2 * ((gaps @ sigma) * gaps).sum(1), 0) - z[y])
        outcome = job.method(job.forward, batch)
        torch.testing.assert_close(outcome.terms["isda"].detach(), torch.stack(rows).mean())
    assert job.method.measures()["strength"] == pytest.approx(2.0 * (3 / total if schedule == "linear" else 1.0))


def test_without_a_strength_isda_is_cross_entropy():
    job = small_job(method="isda:lambda_0=0")
    batch = next(job.batches(0))
    outcome = job.method(job.forward, batch)
    assert torch.equal(outcome.terms["isda"], F.cross_entropy(outcome.outputs, batch.targets))


def test_a_covariance_model_of_ones_own_is_found_by_its_class():
    job = small_job(method=f"isda:covariance={__name__}.Variances,memory=30")
    batch = next(job.batches(0))
    job.step(batch, 0)
    covariance = job.method.criterion.covariance
    assert (type(covariance).__name__, covariance.memory) == ("Variances", 30)
    assert int(covariance.count.sum()) == len(batch.targets)
    with pytest.raises(ValueError, match="could not be loaded"):
        small_job(method="isda:covariance=nowhere.Model")


def test_a_method_of_ones_own_is_refused_if_it_is_none():
    with pytest.raises(ValueError, match="must be a subclass of"):
        find_method(f"{__name__}.Variances")
    assert len(METHODS) == 18
    assert small_config().data == digits().name
