"""Methods by name, with the settings of their publications."""

import pytest
import torch
from semi_helpers import CLASSES, student
from torch import nn

from isda import ISDALoss
from isda.lab import networks
from isda.lab.methods.semi import (
    NAMES,
    VAT,
    MeanTeacher,
    PiModel,
    TemporalEnsembling,
    create,
    defaults_for,
    inputs_for,
)

CASE = {"labels": 4000, "samples": 50_000, "total_steps": 3000}


def test_every_method_comes_alone_and_with_isda():
    alone = {
        "supervised": type(None),
        "pi-model": PiModel,
        "temporal-ensembling": TemporalEnsembling,
        "mean-teacher": MeanTeacher,
        "vat": VAT,
    }
    assert sorted(NAMES) == sorted([*alone, *(f"{name}+isda" for name in alone)])
    for name, kind in alone.items():
        plain, isda = (create(each, student(), **CASE) for each in (name, f"{name}+isda"))
        assert isinstance(plain.regulariser, kind)
        assert isinstance(isda.regulariser, kind)
        assert isinstance(plain.criterion, nn.CrossEntropyLoss)
        assert isinstance(isda.criterion, ISDALoss)
        assert plain.consistency_weight.final == 0
        assert isda.consistency_weight.final == (0 if name == "supervised" else 1)


@pytest.mark.parametrize(
    ("method", "dataset", "labels", "weight", "ramp_up_steps"),
    [
        ("pi-model", "cifar10", 4000, 100 * 4000 / 50_000, 800),
        ("pi-model", "svhn", 500, 100 * 500 / 50_000, 800),
        ("temporal-ensembling", "cifar10", 1000, 30 * 1000 / 50_000, 800),
        ("temporal-ensembling", "cifar100", 10_000, 100 * 10_000 / 50_000, 800),
        ("mean-teacher", "cifar10", 2000, 100 * 2000 / 50_000, 800),
        ("mean-teacher", "svhn", 500, 1.0, 667),
        ("vat", "cifar10", 4000, 1.0, 0),
    ],
)
def test_the_weight_and_its_ramp_are_the_publications(method, dataset, labels, weight, ramp_up_steps):
    mean_over = defaults_for(method, dataset).mean_over
    objective = create(method, student(), dataset=dataset, mean_over=mean_over, **(CASE | {"labels": labels}))
    assert objective.regulariser_weight.final == pytest.approx(weight)
    assert (objective.regulariser_weight.ramp, objective.regulariser_weight.steps) == ("gaussian", ramp_up_steps)


@pytest.mark.parametrize(
    ("method", "dataset", "labelled", "unlabelled"),
    [("pi-model", "cifar10", 8, 92), ("temporal-ensembling", "cifar100", 20, 80), ("mean-teacher", "svhn", 1, 99)],
)
def test_terms_have_the_publications_proportion_whatever_the_labelled_loss_is_a_mean_over(
    method, dataset, labelled, unlabelled
):
    """In batches composed as published, labelled images among the "unlabelled" ones counted once."""
    labels = labelled * CASE["samples"] // 100
    settings = defaults_for(method, dataset)
    per_batch, per_label = (
        settings.weight_for(labels, CASE["samples"], 0, mean_over).final for mean_over in ("batch", "labelled")
    )
    share = labelled / (labelled + unlabelled)
    assert per_batch / share == pytest.approx(per_label)


def test_settings_of_the_regularisers_are_the_publications():
    assert create("temporal-ensembling", student(), **CASE).regulariser.alpha == 0.6
    teacher = create("mean-teacher", student(), dataset="svhn", **CASE).regulariser
    assert (teacher.teacher_decay, teacher.ramp_up_teacher_decay) == (0.999, 0.99)
    assert (teacher.ramp_up_steps, teacher.distance) == (667, "mse")
    assert create("mean-teacher", student(), **CASE).regulariser.ramp_up_teacher_decay == 0.999
    epsilons = [create("vat", student(), dataset=name, **CASE).regulariser.epsilon for name in ("cifar10", "svhn")]
    assert epsilons == [8.0, 3.5]
    assert create("vat", student(), **CASE).regulariser.power_iterations == 1


def test_passes_and_noise_are_the_publications():
    chosen = {name: create(name, student(), **CASE) for name in ("pi-model", "mean-teacher", "vat")}
    assert {name: o.passes for name, o in chosen.items()} == {
        "pi-model": "joint",
        "mean-teacher": "joint",
        "vat": "separate",
    }
    assert [o.input_noise for o in chosen.values()] == [0.15, 0.15, 0.0]


def test_batches_and_inputs_are_the_publications():
    assert (defaults_for("vat", "cifar10").labelled_per_batch, defaults_for("vat", "cifar10").unlabelled_per_batch) == (
        32,
        128,
    )
    assert defaults_for("mean-teacher", "svhn-extra") == defaults_for("mean-teacher", "svhn")
    assert not defaults_for("mean-teacher", "svhn").labelled_too
    assert (inputs_for("cifar100").normalisation, inputs_for("cifar100").flip) == ("zca", True)
    assert (inputs_for("svhn").normalisation, inputs_for("svhn").flip) == ("per-image", False)
    assert defaults_for("vat", "my-own-photos") == defaults_for("vat", "cifar10")


def test_what_the_caller_says_comes_first():
    objective = create(
        "vat+isda",
        student(),
        **CASE,
        lambda_0=0.25,
        covariance="diagonal",
        bound="tilted",
        consistency_weight=2.0,
        regulariser_weight=0.3,
        passes="joint",
        mean_over="batch",
        input_noise=0.1,
        epsilon=2.0,
        xi=0.5,
        power_iterations=3,
        entropy_minimisation=True,
    )
    criterion, vat = objective.criterion, objective.regulariser
    assert (criterion.lambda_0, criterion.total_steps, criterion.bound) == (0.25, 3000, "tilted")
    assert type(criterion.covariance).__name__ == "DiagonalCovariance"
    assert (objective.consistency_weight.final, objective.regulariser_weight.final) == (2.0, 0.3)
    assert (objective.passes, objective.mean_over, objective.input_noise) == ("joint", "batch", 0.1)
    assert (vat.epsilon, vat.xi, vat.power_iterations, vat.entropy_minimisation) == (2.0, 0.5, 3, True)


def test_sizes_and_type_follow_the_network():
    objective = create("temporal-ensembling+isda", student(), **CASE)
    assert objective.regulariser.ensemble.shape == (50_000, CLASSES)
    assert objective.regulariser.ensemble.dtype == objective.criterion.covariance.mean.dtype == torch.float64
    half = networks.create("cnn-13", num_classes=10, width=0.05).half()
    assert create("temporal-ensembling", half, **CASE).regulariser.ensemble.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "mean-teecher+isda",
            {},
            r"method must be one of .*, got 'mean-teecher\+isda'; did you mean 'mean-teacher\+isda'",
        ),
        ("vat", {"epsilno": 1.0}, "option of method vat must be one of .*, got 'epsilno'; did you mean 'epsilon'"),
        ("pi-model", {"alpha": 0.6}, "method pi-model has no options, got 'alpha'"),
        ("vat", {"consistency_weight": 1.0}, r"consistency_weight is for methods with \+isda, got method 'vat'"),
        ("pi-model", {"labels": 50_001}, "labels must lie in 1..samples=50000, got 50001"),
    ],
)
def test_mistakes_are_named_with_the_nearest_good_word(name, settings, message):
    with pytest.raises(ValueError, match=message):
        create(name, student(), **(CASE | settings))
