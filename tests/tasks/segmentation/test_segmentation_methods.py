"""ISDA per pixel is ISDA per sample on flattened pixels; ignored pixels change nothing; which pixels are hard."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isda import ISDALoss
from isda.lab.engine import Recipe
from isda.lab.networks.segmentation import DenseOutputs
from isda.lab.tasks.segmentation.data import SegmentationBatch
from isda.lab.tasks.segmentation.methods import (
    METHODS,
    HeadOutputs,
    SegmentationMethod,
    find_method,
    hard_pixels,
    mean_over_pixels,
)
from segmentation_runs import small_job

C, A, B, N, H, W, FINE = 3, 5, 4, 2, 4, 3, (13, 9)
RECIPE = Recipe({}, {"isda": {"lambda_0": 7.5, "covariance": "diagonal", "bound": "jensen"}})


class TwoHeads(nn.Module):
    """The smallest network with the interface that methods use: features are given, classifiers are trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.classifier, self.auxiliary_classifier = nn.Conv2d(A, C, 1).double(), nn.Conv2d(B, C, 1).double()
        self.features = nn.Parameter(torch.randn(N, A, H, W, dtype=torch.float64))
        self.auxiliary_features = nn.Parameter(torch.randn(N, B, H, W, dtype=torch.float64))

    def forward(self, images, *, dense):
        assert dense
        features, auxiliary = self.features, self.auxiliary_features
        return DenseOutputs(self.classifier(features), features, self.auxiliary_classifier(auxiliary), auxiliary)


def make(method, network, **options):
    config = SimpleNamespace(auxiliary_weight=0.4, total_steps=10, method_options=options)
    return find_method(method).create(network, config).train()


def labels(size=FINE):
    targets = torch.randint(0, C, (N, *size), generator=torch.Generator().manual_seed(2))
    targets[0, :4, :3] = 255
    return targets


def batch(targets):
    return SegmentationBatch(torch.zeros(N, 3, *targets.shape[1:]), targets, torch.arange(N))


def gradients(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_statistics_losses_and_gradients_are_those_of_the_flattened_pixels(covariance, bound):
    """At the resolution of the features, over three steps, for both classifiers."""
    network, targets = TwoHeads(), labels((H, W))
    close = 1e-12 if bound == "jensen" else 1e-9  # the search for the tilt magnifies what convolutions round
    method = make("isda", network, lambda_0=2.0, covariance=covariance, bound=bound)
    heads = {"main": (network.features, network.classifier, A, 1.0)}
    heads["auxiliary"] = (network.auxiliary_features, network.auxiliary_classifier, B, 0.4)
    rows = {
        name: ISDALoss(C, dim, 2.0, 10, covariance=covariance, bound=bound, ignore_index=255, dtype=torch.float64)
        for name, (_, _, dim, _) in heads.items()
    }
    for _ in range(3):
        terms, _ = method(network, batch(targets))
        expected = 0
        for name, (features, head, _, weight) in heads.items():
            flat = features.movedim(1, 3).flatten(0, 2)
            logits = F.linear(flat, head.weight.flatten(1), head.bias)
            expected += weight * rows[name](logits, targets.flatten(), features=flat, weight=head.weight.flatten(1))
        loss = sum(terms.values())
        torch.testing.assert_close(loss, expected, atol=close, rtol=0)
        for mine, theirs in zip(gradients(loss, network), gradients(expected, network), strict=True):
            torch.testing.assert_close(mine, theirs, atol=close, rtol=0)
    for name, criterion in rows.items():
        ours, theirs = method.criteria[name].state_dict(), criterion.state_dict()
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], atol=close, rtol=0)


@pytest.mark.parametrize("method", ["isda", "isda-tilted"])
def test_what_ignored_pixels_hold_changes_neither_loss_nor_gradients_nor_statistics(method):
    """Labels at the resolution of the features: with finer ones a neighbour's logits are interpolated from a pixel."""
    targets = labels((H, W))
    results = []
    for shift in (0.0, 100.0):
        network = TwoHeads()
        ignored = (targets == 255).unsqueeze(1)
        with torch.no_grad():
            network.features += shift * ignored
            network.auxiliary_features -= shift * ignored
        made = make(method, network, lambda_0=2.0, bound="tilted" if method == "isda-tilted" else "jensen")
        made(network, batch(targets))
        terms, _ = made(network, batch(targets))
        results.append((sum(terms.values()), gradients(sum(terms.values()), network), made.state_dict()))
    (loss, slopes, state), (other, other_slopes, other_state) = results
    torch.testing.assert_close(loss, other, atol=1e-12, rtol=0)
    for mine, theirs in zip(slopes, other_slopes, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)
    assert all(torch.equal(state[key], other_state[key]) for key in state)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_a_single_labelled_pixel_costs_nothing_and_moves_nothing(method):
    network = TwoHeads()
    made = make(method, network, **({} if method == "cross-entropy" else {"lambda_0": 2.0}))
    terms, _ = made(network, batch(torch.full((N, *FINE), 255)))
    loss = sum(terms.values())
    assert loss.item() == 0
    assert all(slope is None or not slope.any() for slope in gradients(loss, network))


@pytest.mark.parametrize("method", ["isda", "isda:covariance=full", "isda-tilted"])
def test_strength_zero_is_the_baseline_to_the_bit_through_whole_steps(method):
    """Weights after three steps of the whole network, momentum, weight decay and dropout included."""
    jobs = [small_job(method=f"{method}{',' if ':' in method else ':'}lambda_0=0"), small_job(method="cross-entropy")]
    for job in jobs:
        for step, one in enumerate(list(job.batches(0)) + list(job.batches(1))[:1]):
            job.step(one, step)
    ours, plain = (job.network.state_dict() for job in jobs)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


@pytest.mark.parametrize("method", METHODS)
def test_every_term_moves_what_it_should(method):
    job = small_job(method=method)
    one = next(iter(job.batches(0)))
    if method != "cross-entropy":
        job.step(one, 0)  # the strength of the first step is 0
    terms, _ = job.method(job.forward, one)
    assert list(terms) == [method, "auxiliary"]
    for name, module, other in (
        (method, job.network.head, job.network.auxiliary_head),
        ("auxiliary", job.network.auxiliary_head, job.network.head),
    ):
        moved = torch.autograd.grad(terms[name], list(module.parameters()), retain_graph=True)
        assert all(slope.abs().sum() > 0 for slope in moved)
        still = torch.autograd.grad(terms[name], list(other.parameters()), retain_graph=True, allow_unused=True)
        assert all(slope is None for slope in still)


def test_the_auxiliary_classifier_weighs_what_it_is_told_and_can_be_left_out():
    network = TwoHeads()
    terms, _ = make("cross-entropy", network)(network, batch(labels()))
    fine = F.interpolate(network(None, dense=True).auxiliary_logits, FINE, mode="bilinear", align_corners=True)
    expected = 0.4 * F.cross_entropy(fine, labels(), ignore_index=255)
    torch.testing.assert_close(terms["auxiliary"], expected)
    job = small_job(auxiliary_weight=0.0)
    assert job.network.auxiliary_classifier is None
    assert list(job.method(job.forward, next(iter(job.batches(0))))[0]) == ["isda"]


# -- hard pixels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 5, 12, 1000])
@pytest.mark.parametrize("threshold", [0.3, 0.7, 1.0])
def test_hard_pixels_are_those_of_a_sorted_list(threshold, kept):
    losses = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3
    counted = torch.ones(2, 3, 4, dtype=torch.bool)
    counted[0, 0] = False
    ranked = sorted((loss for loss, counts in zip(losses.flatten(), counted.flatten(), strict=True) if counts))
    worst = {float(loss) for loss in ranked[-kept:]}
    expected = [
        bool(counts) and (math.exp(-loss) <= threshold or float(loss) in worst)
        for loss, counts in zip(losses.flatten(), counted.flatten(), strict=True)
    ]
    assert hard_pixels(losses, counted, threshold, kept).flatten().tolist() == expected


@pytest.mark.parametrize("method", METHODS)
def test_mining_takes_the_mean_over_the_hard_pixels_of_the_augmented_logits(method):
    """As the authors' code does it: probabilities of the upsampled augmented logits choose the pixels."""
    network, targets = TwoHeads(), labels()
    options = {} if method == "cross-entropy" else {"lambda_0": 2.0, "covariance": "diagonal"}
    bound = {"bound": "tilted"} if method == "isda-tilted" else {}
    made = make(method, network, ohem=True, ohem_threshold=0.5, ohem_kept=20, **options, **bound)
    made(network, batch(targets))
    terms, _ = made(network, batch(targets))
    outputs = network(None, dense=True)
    logits = outputs.logits
    if method != "cross-entropy":
        criterion = made.criteria["main"]
        logits = criterion.augmented_logits(logits, targets, weight=network.classifier.weight, strength=0.2)
    fine, plain = (
        F.interpolate(each, FINE, mode="bilinear", align_corners=True).movedim(1, 3)
        for each in (logits, outputs.logits)
    )
    losses = []
    for z, own, label in zip(fine.flatten(0, 2), plain.flatten(0, 2), targets.flatten(), strict=True):
        if label != 255:
            losses.append(z.logsumexp(0) - (own if method == "isda-tilted" else z)[label])
    ranked = sorted(losses, key=lambda loss: float(loss.detach()), reverse=True)
    hard = [loss for number, loss in enumerate(ranked) if number < 20 or math.exp(-loss.detach()) <= 0.5]
    assert 20 < len(hard) < len(losses)
    torch.testing.assert_close(terms[method], torch.stack(hard).mean(), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("isda", "ohem=true,label_smoothing=0.1", "ohem must not be combined with label_smoothing"),
        ("cross-entropy", "ohem=true,label_smoothing=0.1", "ohem must not be combined with label_smoothing"),
        ("isda", "ohem_threshold=0", "ohem_threshold must be more than 0 and at most 1, got 0.0"),
        ("cross-entropy", "ohem_kept=0", "ohem_kept must be at least 1, got 0"),
        ("cross-entropy", "label_smoothing=2", r"label_smoothing must lie in 0..1, got 2.0"),
        ("isda", "covariance=diagnal", "did you mean 'diagonal'"),
        ("isda-tilted", "bound=jensen", "settles bound=tilted"),
        ("isda", "gamma=1", "option of method isda must be one of"),
    ],
)
def test_options_that_make_no_sense_are_refused(method, words, message):
    with pytest.raises(ValueError, match=message):
        make(method, TwoHeads(), **find_method(method).resolve(words, RECIPE))


def test_the_mean_is_over_pixels_that_count():
    losses = torch.tensor([[[1.0, 2.0], [5.0, math.inf]]])
    assert mean_over_pixels(losses, torch.tensor([[[True, True], [True, False]]])).item() == pytest.approx(8 / 3)


class Squared(SegmentationMethod):
    """A method of one's own: the squared distance of probabilities to the one-hot label."""

    def pixel_losses(self, head: HeadOutputs, targets):
        fine = F.interpolate(head.logits, targets.shape[1:], mode="bilinear", align_corners=True)
        one_hot = F.one_hot(targets.where(targets != 255, 0), fine.shape[1]).movedim(3, 1)
        return (fine.softmax(1) - one_hot).square().sum(1)


def test_a_method_of_ones_own_says_what_a_pixel_costs(monkeypatch):
    job = small_job(method=f"{__name__}.Squared:ohem=true,ohem_kept=50")
    job.step(next(iter(job.batches(0))), 0)
    assert job.config.method == f"{__name__}.Squared"
    assert set(job.sums) >= {f"{__name__}.Squared", "auxiliary"}
