"""The probe is the optimum of its own formula, for a penalty that data it has not seen has chosen."""

import pytest
import torch
import torch.nn.functional as F

from isda.lab.data import hold_out
from isda.lab.tasks.transfer.linear_probe import HELD_OUT_SHARE, HOLD_OUT_SEED, fit_probe, widening_search

CLASSES = 3


def problem(samples=120, features=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    centres = torch.randn(CLASSES, features, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return 3.0 + 5.0 * (centres[labels] + 1.5 * noise), labels


def test_the_gradient_of_the_objective_vanishes():
    features, labels = problem()
    probe = fit_probe(features, labels, CLASSES)
    scale = features.std(0, correction=0)
    rows = (features - features.mean(0)) / scale
    weight = (probe.weight * scale).requires_grad_()
    bias = (probe.bias + probe.weight @ features.mean(0)).requires_grad_()
    loss = probe.penalty * F.cross_entropy(F.linear(rows, weight, bias), labels, reduction="sum")
    (loss + weight.square().sum() / 2).backward()
    assert weight.grad.abs().max() < 1e-3 * probe.penalty * len(labels)
    assert bias.grad.abs().max() < 1e-3 * probe.penalty * len(labels)


def test_the_penalty_is_the_best_on_what_was_held_out():
    features, labels = problem()
    probe = fit_probe(features, labels, CLASSES)
    assert probe.penalty == min(probe.tried, key=probe.tried.get)
    assert min(probe.tried) < probe.penalty < max(probe.tried), "the optimum lies inside the grid"


def test_what_was_held_out_has_no_say_in_the_weights_it_judges():
    """At a penalty so strong that all weights vanish, its likelihood is that of the class shares of the others."""
    features, labels = problem()
    tried = fit_probe(features, labels.clamp(max=1), 2).tried
    fitted, judged = hold_out(labels.clamp(max=1), int(HELD_OUT_SHARE * len(labels)), seed=HOLD_OUT_SEED)
    shares = labels.clamp(max=1)[fitted].bincount() / len(fitted)
    expected = -shares.log()[labels.clamp(max=1)[judged]].mean()
    assert tried[min(tried)] == pytest.approx(float(expected), abs=0.02)


def test_scale_and_offset_of_features_change_nothing():
    features, labels = problem()
    moved = features * torch.logspace(-3, 3, 5, dtype=torch.float64) + 100.0
    one, other = fit_probe(features, labels, CLASSES), fit_probe(moved, labels, CLASSES)
    torch.testing.assert_close(one(features), other(moved), rtol=1e-3, atol=1e-3)


def test_constant_features_have_no_say():
    features, labels = problem()
    features[:, 2] = 7.0
    probe = fit_probe(features, labels, CLASSES)
    assert torch.isfinite(probe(features)).all()
    assert (probe.weight[:, 2] == 0).all()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_class_without_images_is_never_the_answer(missing):
    features, labels = problem()
    kept = labels != missing
    probe = fit_probe(features[kept], labels[kept], CLASSES)
    answers = probe(features)
    assert (answers.argmax(1) != missing).all()
    assert torch.isfinite(answers).all()
    assert (probe(features[kept]).argmax(1) == labels[kept]).double().mean() > 0.6


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64), "at least two classes to probe, got 1"),
        (torch.zeros(3, 2), torch.arange(3), "at least 5 labelled images, got 3"),
    ],
)
def test_what_cannot_be_probed_is_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_probe(features.double(), labels, CLASSES)


def test_the_grid_grows_both_ways():
    assert widening_search(lambda value: value, (1.0, 10.0))[0] == pytest.approx(1e-9), "until the widest"
    best, tried = widening_search(lambda value: abs(value - 0.01), (1.0, 10.0))
    assert best == pytest.approx(0.01)
    assert min(tried) == pytest.approx(0.001)
