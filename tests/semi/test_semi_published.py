"""Every number of the publications' settings, entered a second time from their text and code."""

import inspect
from dataclasses import asdict, fields

import pytest

from isda.lab.methods.semi import defaults_for, inputs_for
from isda.lab.methods.semi.defaults import METHODS
from isda.lab.methods.semi.methods import REGULARISERS

# Laine & Aila: batches of 100 from all samples; input noise 0.15; the weight follows 80 of 300 epochs of ramp-up.
LAINE_AILA = {
    "scaled_by_labels": True,
    "mean_over": "batch",
    "ramp_up": 80 / 300,
    "passes": "joint",
    "input_noise": 0.15,
    "labelled_per_batch": None,
    "unlabelled_per_batch": 100,
    "labelled_too": True,
    "second_view": False,
    "shared_flip": True,
    "image_deviation": 1.0,
}
PLAIN = LAINE_AILA | {"scaled_by_labels": False, "mean_over": "labelled", "ramp_up": 0.0, "shared_flip": False}
VAT = PLAIN | {
    "weight": 1.0,
    "passes": "separate",
    "input_noise": 0.0,
    "labelled_per_batch": 32,
    "unlabelled_per_batch": 128,
}
TEACHER = {"weight": 100.0, "ramp_up": 40_000 / 150_000, "second_view": True, "shared_flip": False}
PUBLISHED = {
    ("supervised", "cifar10"): PLAIN
    | {"weight": 0.0, "labelled_per_batch": 100, "unlabelled_per_batch": 0, "options": {}},
    ("pi-model", "cifar10"): LAINE_AILA | {"weight": 100.0, "second_view": True, "options": {}},
    ("temporal-ensembling", "cifar10"): LAINE_AILA | {"weight": 30.0, "options": {"alpha": 0.6}},
    ("temporal-ensembling", "cifar100"): LAINE_AILA | {"weight": 100.0, "options": {"alpha": 0.6}},
    ("mean-teacher", "cifar10"): LAINE_AILA
    | TEACHER
    | {"options": {"teacher_decay": 0.999, "ramp_up_teacher_decay": 0.999}},
    ("mean-teacher", "svhn"): LAINE_AILA
    | TEACHER
    | {
        "weight": 1.0,
        "scaled_by_labels": False,
        "ramp_up": 40_000 / 180_000,
        "labelled_per_batch": 1,
        "unlabelled_per_batch": 99,
        "labelled_too": False,
        "options": {"teacher_decay": 0.999, "ramp_up_teacher_decay": 0.99},
    },
    ("vat", "cifar10"): VAT | {"options": {"epsilon": 8.0, "power_iterations": 1}},
    ("vat", "svhn"): VAT | {"image_deviation": 0.12, "options": {"epsilon": 3.5, "power_iterations": 1}},
}


def test_all_settings_are_the_publications():
    assert {(method, name) for method, sets in METHODS.items() for name in sets} == set(PUBLISHED)
    for (method, dataset), expected in PUBLISHED.items():
        assert asdict(defaults_for(method, dataset)) == expected, (method, dataset)


def test_inputs_are_the_publications():
    prepared = {name: asdict(inputs_for(name)) for name in ("cifar10", "cifar100", "svhn", "photos")}
    assert prepared == {
        "cifar10": {"normalisation": "zca", "flip": True},
        "cifar100": {"normalisation": "zca", "flip": True},
        "svhn": {"normalisation": "per-image", "flip": False},
        "photos": {"normalisation": "channel", "flip": False},
    }


@pytest.mark.parametrize("name", list(REGULARISERS))
def test_what_may_be_written_has_the_defaults_of_what_is_made(name):
    kind = REGULARISERS[name]
    parameters = inspect.signature(kind.__init__).parameters
    for option in fields(kind.Options):
        assert option.default == parameters[option.name].default


def test_defaults_of_what_is_made_are_the_publications():
    made = {name: {f.name: f.default for f in fields(kind.Options)} for name, kind in REGULARISERS.items()}
    assert made == {
        "pi-model": {},
        "temporal-ensembling": {"alpha": 0.6},
        "mean-teacher": {"teacher_decay": 0.999, "ramp_up_teacher_decay": None, "distance": "mse"},
        # The authors' xi of 1e-6 is below what float32 can tell apart, see VAT.
        "vat": {"epsilon": 8.0, "xi": 1e-3, "power_iterations": 1, "entropy_minimisation": False},
    }


@pytest.mark.parametrize(
    ("method", "dataset", "unlabelled", "labels", "expected"),
    [
        ("vat", "cifar10", 128, 4000, 32),
        ("vat", "cifar10", 64, 4000, 16),
        ("vat", "cifar10", 128, 20, 20),  # there are no more
        ("mean-teacher", "svhn", 99, 500, 1),
        ("mean-teacher", "svhn", 10, 500, 1),  # never none
        ("pi-model", "cifar10", 100, 4000, 8),  # by chance: 4,000 of 50,000
        ("pi-model", "cifar10", 250, 5000, 25),
        ("supervised", "cifar10", 100, 4000, 100),
    ],
)
def test_batches_have_the_publications_proportion(method, dataset, unlabelled, labels, expected):
    assert defaults_for(method, dataset).labelled_beside(unlabelled, labels, 50_000) == expected


@pytest.mark.parametrize(
    ("method", "dataset", "labels", "expected"),
    [
        ("pi-model", "cifar10", 5000, 100.0),  # 100 M / N over the labelled share M / N
        ("mean-teacher", "svhn", 500, 1.0 * 100),  # one of a hundred is labelled
        ("vat", "cifar10", 5000, 1.0),  # a mean over the labelled ones as published
        ("pi-model", "cifar10", 50_000, 100.0),
    ],
)
def test_the_weight_for_a_mean_over_the_labelled_ones(method, dataset, labels, expected):
    assert defaults_for(method, dataset).weight_for(labels, 50_000, 1000).final == pytest.approx(expected)


@pytest.mark.parametrize("labels", [0, -1, 50_001])
def test_impossible_numbers_of_labels_are_refused(labels):
    with pytest.raises(ValueError, match=rf"labels must lie in 1..samples=50000, got {labels}"):
        defaults_for("pi-model", "cifar10").weight_for(labels, 50_000, 1000)
