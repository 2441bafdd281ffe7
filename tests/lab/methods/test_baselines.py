"""The paper's baselines and mixup: each loss against its formula, written in loops; their options; what they train."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isda.lab.methods.criteria import (
    CenterLoss,
    DistributionNet,
    DisturbLabel,
    FocalLoss,
    LabelSmoothing,
    LargeMarginLoss,
    LqLoss,
    disturb_labels,
    margin_function,
)
from isda.lab.methods.mixup import draw_share
from isda.lab.methods.registry import METHODS, find_method
from isda.lab.tasks.classification.settings import recipe_for
from small_runs import small_config, small_job

ROWS, CLASSES, DIM = 6, 4, 3
TARGETS = torch.tensor([0, 3, 1, 1, 2, 0])


def probabilities(z):
    total = sum(torch.exp(value) for value in z)
    return [torch.exp(value) / total for value in z]


def cross_entropy(z, y):
    return -torch.log(probabilities(z)[y])


def focal(z, y, **_):
    p = probabilities(z)[y]
    return -0.3 * (1 - p) ** 1.7 * torch.log(p)


def lq(z, y, **_):
    return (1 - probabilities(z)[y] ** 0.4) / 0.4


def label_smoothing(z, y, **_):
    shares = [0.8 * (c == y) + 0.2 / CLASSES for c in range(CLASSES)]
    return -sum(share * torch.log(p) for share, p in zip(shares, probabilities(z), strict=True))


def center(z, y, *, x, criterion, **_):
    return cross_entropy(z, y) + 0.6 / 2 * sum((x - criterion.centres[y]) ** 2)


def large_margin(z, y, *, x, weight, **_):
    """f_y = (lambda |w||x| cos + |w||x| psi) / (1 + lambda) with psi of the angle itself, and the bias outside."""
    own = weight[y]
    lengths = torch.sqrt(sum(own**2)) * torch.sqrt(sum(x**2))
    angle = torch.acos(sum(own * x) / lengths)
    k = math.floor(float(angle.detach()) * 3 / math.pi)
    psi = (-1) ** k * torch.cos(3 * angle) - 2 * k
    bias = z[y] - sum(own * x)
    changed = (2.0 * lengths * torch.cos(angle) + lengths * psi) / 3.0 + bias
    return cross_entropy(torch.stack([changed if c == y else z[c] for c in range(CLASSES)]), y)


def distribution_net(z, y, *, x, weight, criterion, noise, everyone):
    def deviations(row):
        return torch.log(1 + torch.exp(criterion.head.weight @ row + criterion.head.bias))

    drawn = [cross_entropy(z + weight @ (deviations(x) * e), y) for e in noise]
    entropies = [sum(0.5 * torch.log(2 * math.pi * math.e * deviations(row) ** 2)) / DIM for row in everyone]
    short = 0.5 * math.log(2 * math.pi * math.e * 3.0**2) - sum(entropies) / len(entropies)
    return (cross_entropy(z, y) + 0.4 * sum(drawn) / len(drawn)) / 1.4 + 0.9 * max(short, 0 * short)


def make_center():
    criterion = CenterLoss(CLASSES, DIM, 0.6, dtype=torch.float64)
    criterion.centres.copy_(torch.randn(CLASSES, DIM, dtype=torch.float64))
    return criterion


CASES = {
    "focal": (lambda: FocalLoss(0.3, 1.7), focal, ()),
    "lq": (lambda: LqLoss(0.4), lq, ()),
    "label-smoothing": (lambda: LabelSmoothing(0.2), label_smoothing, ()),
    "center": (make_center, center, ("features",)),
    # A base of 0 leaves lambda at its minimum.
    "large-margin": (lambda: LargeMarginLoss(3, base=0.0, lambda_min=2.0), large_margin, ("features", "weight")),
    "distribution-net": (
        lambda: DistributionNet(
            DIM, sample_weight=0.4, samples=5, uncertainty_weight=0.9, deviation=3.0, dtype=torch.float64
        ),
        distribution_net,
        ("features", "weight"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_formula(name):
    make, formula, inputs = CASES[name]
    criterion = make()
    features = torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(CLASSES, DIM, dtype=torch.float64, requires_grad=True)
    logits = features @ weight.T + torch.randn(CLASSES, dtype=torch.float64)
    given = {"features": features, "weight": weight}
    torch.manual_seed(5)
    noise = torch.randn(ROWS, 5, DIM, dtype=torch.float64)
    rows = []
    for i, y in enumerate(TARGETS.tolist()):
        further = {"noise": noise[i], "everyone": features} if name == "distribution-net" else {}
        rows.append(formula(logits[i], y, x=features[i], weight=weight, criterion=criterion, **further))
    expected = torch.stack(rows).mean()
    wanted = torch.autograd.grad(expected, (features, weight), retain_graph=True)
    torch.manual_seed(5)
    found = criterion(logits, TARGETS, **{key: given[key] for key in inputs})
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.autograd.grad(found, (features, weight)), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("margin", [1, 2, 4])
def test_the_margin_function_is_that_of_the_angle(margin):
    angles = torch.linspace(0.001, torch.pi - 0.001, 500, dtype=torch.float64)
    k = (angles * margin / torch.pi).floor()
    expected = (-1) ** k * torch.cos(margin * angles) - 2 * k
    torch.testing.assert_close(margin_function(angles.cos(), margin), expected, rtol=1e-7, atol=1e-7)


def test_centres_follow_their_class_and_stay_in_eval_mode():
    criterion = CenterLoss(CLASSES, DIM, rate=0.5)
    features, labels = torch.randn(ROWS, DIM), TARGETS
    criterion(torch.zeros(ROWS, CLASSES), labels, features=features)
    for c in range(CLASSES):
        own = features[labels == c]
        torch.testing.assert_close(criterion.centres[c], 0.5 * own.sum(0) / (1 + len(own)))
    before = criterion.centres.clone()
    criterion.eval()(torch.zeros(ROWS, CLASSES), labels, features=features)
    assert torch.equal(criterion.centres, before)


def test_labels_are_disturbed_as_often_as_the_rate_says():
    labels = torch.randint(5, (20_000,))
    kept = (disturb_labels(labels, 5, rate=0.5) == labels).double().mean()
    assert float(kept) == pytest.approx(1 - 0.5 * 4 / 5, abs=0.02)
    logits = torch.randn(20, 5)
    plain = torch.nn.functional.cross_entropy(logits, labels[:20])
    torch.testing.assert_close(DisturbLabel(0.5).eval()(logits, labels[:20]), plain)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("focal", {"alpha": 0.5, "gamma": 1.0}),
        ("lq", {"q": 0.4}),
        ("center", {"weight": 0.003, "rate": 0.5}),
        ("disturb-label", {"rate": 0.1}),
        ("large-margin", {"margin": 2}),
        ("mixup+isda:alpha=0.2", {"alpha": 0.2, "lambda_0": 0.5, "covariance": "full"}),
    ],
)
def test_options_are_those_of_the_paper_and_stored(text, options):
    name, _, words = text.partition(":")
    resolved = find_method(name).resolve(words, recipe_for("resnet-110", "cifar100"))
    assert resolved.items() >= options.items()
    assert (
        small_config(method=text).method_options.items()
        >= find_method(name).resolve(words, recipe_for("fast-cnn")).items()
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_term_of_every_method_moves_the_network(name):
    job = small_job(method=name)
    before = [parameter.detach().clone() for parameter in job.network.parameters()]
    for step, batch in zip(range(2), job.batches(0), strict=False):
        job.step(batch, step)
    assert all(not torch.equal(a, b) for a, b in zip(before, job.network.parameters(), strict=True))


@pytest.mark.parametrize("name", ["focal", "lq", "label-smoothing", "center", "mixup"])
def test_with_a_strength_of_zero_a_combination_is_the_method_alone(name):
    weights = []
    for method in (name, f"{name}+isda:lambda_0=0"):
        job = small_job(method=method, precision="float64")
        for step, batch in zip(range(3), job.batches(0), strict=False):
            job.step(batch, step)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in job.network.parameters()]))
    torch.testing.assert_close(*weights)


def mixed_by_hand(values: Tensor, partners: Tensor, share: float) -> Tensor:
    return torch.stack([share * values[i] + (1 - share) * values[j] for i, j in enumerate(partners.tolist())])


def test_mixup_is_the_loop_over_samples():
    job = small_job(method="mixup", precision="float64")
    batch = next(job.batches(0))
    torch.manual_seed(3)
    mixed = job.method.prepare(batch)
    torch.manual_seed(3)
    share, partners = draw_share(1.0), torch.randperm(20)
    torch.testing.assert_close(mixed.images, mixed_by_hand(batch.images, partners, share))
    one_hot = torch.eye(10, dtype=torch.float64)[batch.targets]
    torch.testing.assert_close(mixed.targets, mixed_by_hand(one_hot, partners, share))
    assert small_job(method="mixup:alpha=0").method.prepare(batch) is batch


def test_an_option_out_of_range_is_refused_before_anything_is_trained():
    with pytest.raises(ValueError, match=r"alpha must be a finite number >= 0, got -1\.0"):
        small_config(method="mixup:alpha=-1")
    with pytest.raises(ValueError, match="option of method focal must be one of alpha, gamma, got 'beta'"):
        small_config(method="focal:beta=1")
