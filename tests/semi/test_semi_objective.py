"""The overall objective: which terms, with which weights, from which passes."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from semi_helpers import CLASSES, FEATURES, labelled, normal, objective_for, run_steps, student, unlabelled, warmed_up
from torch import nn

from isda import ISDALoss
from isda.lab.methods.semi import (
    NAMES,
    PiModel,
    RampedWeight,
    SemiSupervised,
    UnlabelledBatch,
    create,
    gaussian_ramp_up,
)
from isda.lab.networks import Network
from oracles import batch_covariance


def isda(**settings):
    return ISDALoss(CLASSES, FEATURES, 0.5, total_steps=10, dtype=torch.float64, **settings)


def plain(**settings):
    """A student without dropout and an objective of both terms beside the labelled one."""
    network = student(dropout=0.0)
    settings = {"consistency_weight": 1.0, "regulariser_weight": 1.0} | settings
    return SemiSupervised(network, isda(), PiModel(), **settings), network


def test_terms_are_named_by_what_the_method_has():
    expected = {"supervised": ["labelled"], "supervised+isda": ["labelled"]}
    for name in NAMES:
        network = student()
        terms, logits = objective_for(name, network)(network, *labelled(), unlabelled())
        middle = ["consistency"] if name.endswith("+isda") else []
        assert list(terms) == expected.get(name, ["labelled", *middle, "regulariser"]), name
        assert logits.shape == (5, CLASSES)


def test_the_values_are_those_of_the_parts_weighted():
    objective, network = plain(consistency_weight=0.5, regulariser_weight=RampedWeight(3.0, "gaussian", steps=10))
    reference = isda()
    twin = copy.deepcopy(network)
    for step in range(4):
        images, targets = labelled(seed=step)
        view = unlabelled(seed=step)
        terms, logits = objective(network, images, targets, view)
        together = torch.cat([images, view.images])
        features = twin.features(together)
        outputs = twin.classifier(features)
        strength = reference.strength
        weight = twin.classifier.weight
        first = reference(outputs[:5], targets, features=features[:5], weight=weight)
        second = reference.consistency(outputs[5:], weight=weight, strength=strength)
        p, q = torch.softmax(outputs[5:], 1), torch.softmax(twin(torch.cat([images, view.second]))[5:], 1)
        torch.testing.assert_close(logits, outputs[:5])
        torch.testing.assert_close(terms["labelled"], first)
        torch.testing.assert_close(terms["consistency"], 0.5 * second)
        torch.testing.assert_close(terms["regulariser"], 3 * gaussian_ramp_up(step, 10) * (p - q).square().mean())
        objective.after_step(network)
    assert objective.criterion.step == 4


def test_covariances_come_from_labelled_features_alone():
    for passes in ("joint", "separate"):
        objective, network = plain(passes=passes)
        twin, rows, classes = copy.deepcopy(network), [], []
        for step in range(3):
            images, targets = labelled(seed=step)
            view = unlabelled(seed=step)
            objective(network, images, targets, view)
            given = torch.cat([images, view.images]) if passes == "joint" else images
            rows.append(twin.features(given)[:5].detach())
            classes.append(targets)
        expected = batch_covariance(torch.cat(rows), torch.cat(classes), CLASSES)
        covariance = objective.criterion.covariance
        actual = torch.stack([covariance.covariance(c) for c in range(CLASSES)])
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        assert int(covariance.count.sum()) == 15


def test_both_bounds_of_a_step_use_one_strength():
    objective, network = plain()
    objective.criterion.set_step(4)
    given = []
    consistency = objective.criterion.consistency
    objective.criterion.consistency = lambda *args, strength, **kwargs: (
        given.append(float(strength)) or consistency(*args, strength=strength, **kwargs)
    )
    objective(network, *labelled(), unlabelled())
    assert given == pytest.approx([0.5 * 4 / 10])
    assert objective.criterion.step == 5


def test_separate_passes_normalise_each_part_alone_and_keep_the_statistics_of_the_labelled_one():
    objective, network = plain(passes="separate")
    twin = copy.deepcopy(network)
    (images, targets), view = labelled(), unlabelled()
    with torch.no_grad():
        _, logits = objective(network, images, targets, view)
    torch.testing.assert_close(logits, twin(images))
    twin(view.second)  # the Pi-model's own pass
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)


def test_a_joint_pass_normalises_both_parts_together():
    objective, network = plain()
    twin = copy.deepcopy(network)
    (images, targets), view = labelled(), unlabelled()
    _, logits = objective(network, images, targets, view)
    torch.testing.assert_close(logits, twin(torch.cat([images, view.images]))[:5])
    assert (logits - copy.deepcopy(twin)(images)).abs().max() > 1e-3


@pytest.mark.parametrize(("method", "view_name"), [("pi-model", "second"), ("mean-teacher", "second")])
def test_in_joint_passes_every_view_shares_its_batch_statistics_with_the_labelled_images(method, view_name):
    network = student(dropout=0.0)
    objective = objective_for(method, network, input_noise=0.0)
    twin = copy.deepcopy(network)
    (images, targets), view = labelled(), unlabelled()
    objective(network, images, targets, view)
    passed = objective.regulariser.teacher if method == "mean-teacher" else network
    if method != "mean-teacher":
        twin(torch.cat([images, view.images]))
    twin(torch.cat([images, getattr(view, view_name)]))
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(passed.state_dict()[name], value)


def test_a_view_beside_labelled_images_gives_the_logits_of_its_own_rows():
    network, view = student(dropout=0.0), unlabelled()
    images, _ = labelled()
    together = network(torch.cat([images, view.second]))
    beside = replace(view, labelled_images=images)
    assert torch.equal(beside.passed(network, view.second), together[5:])
    assert torch.equal(view.passed(network, view.second), network(view.second))


def test_the_mean_over_the_batch_divides_the_labelled_sum_by_labelled_and_unlabelled_images():
    network = student(norm=False, dropout=0.0)
    (images, targets), view = labelled(), unlabelled()
    objective = SemiSupervised(network, nn.CrossEntropyLoss(), PiModel(), mean_over="batch")
    terms, _ = objective(network, images, targets, view)
    expected = F.cross_entropy(network(images), targets, reduction="sum") / (5 + 6)
    torch.testing.assert_close(terms["labelled"], expected)


def test_supervised_never_looks_at_unlabelled_images():
    network = student(dropout=0.0)
    twin = copy.deepcopy(network)
    objective = create("supervised", network, labels=8, samples=24, total_steps=10, input_noise=0.0)
    images, targets = labelled()
    terms, _ = objective(network, images, targets, unlabelled())
    torch.testing.assert_close(terms["labelled"], F.cross_entropy(twin(images), targets))
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in network.state_dict().items())


def test_noise_is_fresh_on_every_view_and_has_the_deviation_asked_for():
    network, seen = student(), []
    objective = SemiSupervised(network, nn.CrossEntropyLoss(), PiModel(), input_noise=0.15)
    size = 400
    (images, targets), view = labelled(size), unlabelled(12)
    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    objective(network, images, targets, view)
    noise = [seen[0][:size] - images, seen[0][size:] - view.images, seen[1][size:] - view.second]
    assert float(noise[0].std()) == pytest.approx(0.15, rel=0.05)
    for part in noise[1:]:
        assert 0.1 < float(part.std()) < 0.2
    assert (noise[1] - noise[2]).abs().max() > 0.05


def test_ramps_follow_the_steps_taken():
    objective, network = plain(regulariser_weight=RampedWeight(8.0, "gaussian", steps=10))
    weights = []
    for _ in range(12):
        weights.append(objective.measures()["regulariser_weight"])
        objective.after_step(network)
    assert weights == pytest.approx([8.0 * gaussian_ramp_up(step, 10) for step in range(12)])


def test_measures_name_strength_and_weights():
    objective, _ = plain()
    assert objective.measures() == {"strength": 0.0, "consistency_weight": 1.0, "regulariser_weight": 1.0}
    assert create("supervised", student(), labels=8, samples=24, total_steps=10).measures() == {}


def test_training_by_the_objective_lowers_its_terms():
    network = student(dropout=0.0)
    objective = objective_for("mean-teacher+isda", network, input_noise=0.0)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.2)
    (images, targets), view = labelled(), unlabelled()
    first = None
    for _ in range(60):
        terms, _ = objective(network, images, targets, view)
        first = first or float(terms["labelled"].detach())
        optimiser.zero_grad()
        sum(terms.values()).backward()
        optimiser.step()
        objective.after_step(network)
    assert float(terms["labelled"].detach()) < 0.5 * first


def test_the_teacher_is_what_is_evaluated_and_the_student_elsewhere():
    for name in NAMES:
        objective, network = warmed_up(name, steps=1)
        chosen = objective.evaluated(network)
        assert (chosen is network) == (not name.startswith("mean-teacher")), name


def test_a_wrapped_student_is_as_good_as_the_network_itself():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, images):
            return self.module(images)

    results = []
    for wrap in (lambda network: network, Wrapper):
        network = student()
        objective = objective_for("mean-teacher+isda", network)
        forward = wrap(network)
        run_steps(objective, forward, torch.optim.SGD(network.parameters(), lr=0.1), range(3))
        results.append({"student": network.state_dict(), "objective": objective.state_dict()})
    for part in ("student", "objective"):
        assert all(torch.equal(value, results[1][part][name]) for name, value in results[0][part].items())


def test_embeddings_are_images_too():
    network = Network(nn.Identity(), nn.Linear(FEATURES, CLASSES)).double()
    objective = create("vat+isda", network, labels=8, samples=24, total_steps=10, epsilon=1.0)
    terms, _ = objective(
        network, normal(5, FEATURES, seed=1), torch.arange(5) % CLASSES, UnlabelledBatch(normal(6, FEATURES, seed=2))
    )
    sum(terms.values()).backward()
    assert network.classifier.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda n: SemiSupervised(n, nn.CrossEntropyLoss(), consistency_weight=1.0),
            "needs an ISDALoss or ExplicitLoss as criterion",
        ),
        (lambda n: SemiSupervised(n, nn.CrossEntropyLoss(reduction="sum")), "reduction='mean', got 'sum'"),
        (lambda n: SemiSupervised(n, isda(), passes="jiont"), "passes must be one of joint, separate, got 'jiont'"),
        (lambda n: SemiSupervised(n, isda(), mean_over="all"), "mean_over must be one of labelled, batch, got 'all'"),
        (lambda n: SemiSupervised(n, isda(), input_noise=-1), "input_noise must not be negative, got -1"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(student())


def test_missing_unlabelled_images_are_named():
    objective, network = plain()
    with pytest.raises(ValueError, match="unlabelled must be an UnlabelledBatch for this objective, got None"):
        objective(network, *labelled())
    assert objective.criterion.step == 0


def test_a_student_in_eval_mode_is_refused():
    objective, network = plain()
    network.eval()
    with pytest.raises(ValueError, match="network must be in training mode"):
        objective(network, *labelled(), unlabelled())


def test_a_regulariser_has_weight_one_unless_it_is_given_another():
    values = []
    for settings in ({}, {"regulariser_weight": 1.0}):
        torch.manual_seed(0)
        network = student(dropout=0.0)
        terms, _ = SemiSupervised(network, isda(), PiModel(), **settings)(network, *labelled(), unlabelled())
        values.append(terms["regulariser"])
    assert values[0] == values[1] > 0
