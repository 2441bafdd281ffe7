"""Every regulariser against a re-statement of its formula, in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from semi_helpers import CLASSES, SAMPLES, normal, student, unlabelled
from torch import nn

from isda.lab.methods.semi import (
    VAT,
    MeanTeacher,
    PiModel,
    TemporalEnsembling,
    UnlabelledBatch,
    averaging_decay,
)


def softmax(logits):
    exponentials = logits.exp()
    return exponentials / exponentials.sum(1, keepdim=True)


def close(actual, expected):
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=1e-10, atol=1e-13)


# -- Pi-model ----------------------------------------------------------------------------------------------------------


def test_pi_model_is_the_mean_square_of_the_difference_of_two_predictions():
    network, view = student(), unlabelled()
    torch.manual_seed(3)
    value = PiModel()(network, view, network(view.images))
    torch.manual_seed(3)
    p, q = softmax(network(view.images)).detach(), softmax(network(view.second)).detach()  # two draws of dropout masks
    expected = sum(float((p[i, c] - q[i, c]) ** 2) for i in range(6) for c in range(CLASSES)) / (6 * CLASSES)
    close(value.detach(), torch.tensor(expected, dtype=torch.float64))


def test_pi_model_trains_both_passes():
    network, view = student(norm=False, dropout=0.0), unlabelled()
    parameters = list(network.parameters())
    actual = torch.autograd.grad(PiModel()(network, view, network(view.images)), parameters)
    p, q = softmax(network(view.images)), softmax(network(view.second))
    sides = [
        torch.autograd.grad((a - b.detach()).pow(2).mean(), parameters, retain_graph=True) for a, b in ((p, q), (q, p))
    ]
    for gradient, first, second in zip(actual, *sides, strict=True):
        close(gradient, first + second)


# -- temporal ensembling -----------------------------------------------------------------------------------------------


def test_temporal_ensembling_equals_a_bookkeeper_of_every_sample():
    alpha, regulariser = 0.6, TemporalEnsembling(SAMPLES, CLASSES, dtype=torch.float64)
    ensemble, epochs = {}, {}
    for epoch in range(5):
        today: dict[int, list[torch.Tensor]] = {}
        for step in range(6):  # samples come up once, several times, or not at all in an epoch
            view = unlabelled(size=5, seed=10 * epoch + step)
            logits = 2 * normal(5, CLASSES, seed=1000 + 10 * epoch + step)
            expected = 0.0
            for index, p in zip(view.indices.tolist(), softmax(logits), strict=True):
                if epochs.get(index, 0):
                    target = ensemble[index] / (1 - alpha ** epochs[index])
                    expected += float(((p - target) ** 2).sum()) / (5 * CLASSES)
                today.setdefault(index, []).append(p)
            value = regulariser(nn.Identity(), view, logits)
            close(value, torch.tensor(expected, dtype=torch.float64))
            assert (value > 0) == (epoch > 0)
        for index, predictions in today.items():
            mean = sum(predictions) / len(predictions)
            ensemble[index] = alpha * ensemble.get(index, 0) + (1 - alpha) * mean
            epochs[index] = epochs.get(index, 0) + 1
        regulariser.after_epoch()
    assert len(set(epochs.values())) > 1  # some were seen more often than others


def test_the_first_target_is_the_prediction_itself():
    regulariser = TemporalEnsembling(SAMPLES, CLASSES, dtype=torch.float64)
    view, logits = unlabelled(), normal(6, CLASSES, seed=5)
    regulariser(nn.Identity(), view, logits)
    regulariser.after_epoch()
    target, known = regulariser.targets(view.indices)
    close(target, softmax(logits))
    assert known.tolist() == [1.0] * 6
    assert float(regulariser(nn.Identity(), view, logits)) < 1e-30


def test_targets_are_distributions_however_often_a_sample_was_seen():
    regulariser = TemporalEnsembling(SAMPLES, CLASSES, dtype=torch.float64)
    for epoch in range(20):
        view = unlabelled(size=12, seed=epoch)
        regulariser(nn.Identity(), view, 3 * normal(12, CLASSES, seed=epoch))
        regulariser.after_epoch()
    target, known = regulariser.targets(torch.arange(SAMPLES))
    assert (regulariser.epochs > 0).equal(known > 0)
    close(target.sum(1), known)


def test_in_eval_mode_nothing_is_noted():
    regulariser = TemporalEnsembling(SAMPLES, CLASSES).eval()
    regulariser(nn.Identity(), unlabelled(), normal(6, CLASSES, seed=5))
    assert int(regulariser.seen.sum()) == 0


# -- mean teacher ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["mse", "kl"])
def test_mean_teacher_is_the_distance_to_the_teachers_prediction_of_the_second_view(distance):
    network, view = student(), unlabelled()
    regulariser = MeanTeacher(student(seed=7), distance=distance)
    logits, twin = network(view.images), copy.deepcopy(regulariser.teacher)
    torch.manual_seed(3)
    value = regulariser(network, view, logits)
    torch.manual_seed(3)
    p, q = softmax(logits), softmax(twin(view.second))
    rows = ((p - q) ** 2).sum(1) / CLASSES if distance == "mse" else (q * (q / p).log()).sum(1)
    close(value.detach(), rows.mean().detach())


def test_the_teacher_is_the_average_that_the_formula_says():
    network = student()
    regulariser = MeanTeacher(network, teacher_decay=0.9, ramp_up_teacher_decay=0.7, ramp_up_steps=6)
    expected = [parameter.detach().clone() for parameter in network.parameters()]
    for step in range(30):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        alpha = min(1 - 1 / (step + 1), 0.7 if step < 6 else 0.9)
        expected = [
            alpha * mean + (1 - alpha) * p.detach() for mean, p in zip(expected, network.parameters(), strict=True)
        ]
        regulariser.after_step(network, step)
        for mean, reference in zip(regulariser.teacher.parameters(), expected, strict=True):
            close(mean, reference)


def test_after_the_first_step_teacher_and_student_have_the_same_weights():
    network = student()
    regulariser = MeanTeacher(student(seed=9))
    regulariser.after_step(network, 0)
    torch.testing.assert_close([*regulariser.teacher.parameters()], [*network.parameters()])


def test_decays_of_the_publication():
    assert [averaging_decay(step, 0.999) for step in (0, 1, 9)] == pytest.approx([0.0, 0.5, 0.9])
    assert averaging_decay(10**6, 0.999) == 0.999
    assert averaging_decay(39_999, 0.999, 0.99, 40_000) == 0.99


def test_the_teacher_is_the_network_that_is_evaluated_and_keeps_its_own_running_statistics():
    network = student()
    regulariser = MeanTeacher(network)
    assert regulariser.evaluated(network) is regulariser.teacher
    before = copy.deepcopy(network.state_dict())
    regulariser(network, unlabelled(), normal(6, CLASSES, seed=1))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert int(regulariser.teacher.body[2].num_batches_tracked) == 1


# -- VAT ---------------------------------------------------------------------------------------------------------------


def vat_oracle(network, images, epsilon, iterations, seed):
    """KL at epsilon times the normalised H^k d, with the exact Hessian H = J' (diag p - p p') J of the KL at 0."""
    torch.manual_seed(seed)
    directions = torch.randn_like(images).flatten(1)
    values = []
    for image, direction in zip(images, directions, strict=True):
        flat = image.flatten()
        jacobian = torch.autograd.functional.jacobian(lambda x: network(x.view(1, 2, 3, 3))[0], flat)
        p = softmax(network(image.unsqueeze(0)).detach())[0]
        hessian = jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
        for _ in range(iterations):
            direction = hessian @ direction
        moved = flat + epsilon * direction / math.sqrt(float(direction @ direction))
        q = softmax(network(moved.view(1, *image.shape)).detach())[0]
        values.append(float((p * (p / q).log()).sum()))
    return sum(values) / len(values)


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_vat_equals_the_oracle_with_the_exact_hessian(iterations):
    network, view = student(norm=False, dropout=0.0), unlabelled()
    regulariser = VAT(epsilon=1.5, xi=1e-6, power_iterations=iterations)
    torch.manual_seed(11)
    value = regulariser(network, view, network(view.images))
    expected = vat_oracle(network, view.images, 1.5, iterations, seed=11)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-4)


def test_entropy_minimisation_adds_the_mean_entropy():
    network, view = student(), unlabelled()
    logits = network(view.images)
    values = []
    for added in (False, True):
        torch.manual_seed(2)
        values.append(VAT(epsilon=1.0, entropy_minimisation=added)(network, view, logits).detach())
    p = softmax(logits.detach())
    close(values[1] - values[0], -(p * p.log()).sum(1).mean())


# -- what they refuse --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regulariser", "name"),
    [
        (PiModel(), "second"),
        (MeanTeacher(student()), "second"),
        (TemporalEnsembling(SAMPLES, CLASSES), "indices"),
    ],
)
def test_a_missing_view_is_named(regulariser, name):
    view = UnlabelledBatch(normal(6, 2, 3, 3, seed=1))
    with pytest.raises(ValueError, match=f"the unlabelled batch must have {name} for this method, got None"):
        regulariser(student(), view, normal(6, CLASSES, seed=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TemporalEnsembling(0, 3), "samples and num_classes must be positive, got 0 and 3"),
        (lambda: TemporalEnsembling(3, 0), "samples and num_classes must be positive, got 3 and 0"),
        (lambda: TemporalEnsembling(3, 3, alpha=1.0), r"alpha must lie in \[0, 1\), got 1.0"),
        (lambda: TemporalEnsembling(3, 3, alpha=-0.1), r"alpha must lie in \[0, 1\), got -0.1"),
        (lambda: MeanTeacher(student(), teacher_decay=1.0), r"^teacher_decay must lie in \[0, 1\), got 1.0"),
        (
            lambda: MeanTeacher(student(), ramp_up_teacher_decay=-0.1),
            r"ramp_up_teacher_decay must lie in \[0, 1\), got -0.1",
        ),
        (
            lambda: MeanTeacher(student(), distance="mes"),
            "distance must be one of mse, kl, got 'mes'; did you mean 'mse'",
        ),
        (lambda: VAT(epsilon=0), "epsilon and xi must be positive, got 0 and 0.001"),
        (lambda: VAT(xi=0), "epsilon and xi must be positive, got 8.0 and 0"),
        (lambda: VAT(power_iterations=0.5), "power_iterations must be an integer >= 0, got 0.5"),
        (lambda: VAT(power_iterations=-1), "power_iterations must be an integer >= 0, got -1"),
        (
            lambda: UnlabelledBatch(torch.zeros(2, 3), indices=torch.zeros(3, dtype=torch.int64)),
            r"indices must be int64 of shape \(2,\), got torch.int64 of \(3,\)",
        ),
        (lambda: UnlabelledBatch(torch.zeros(2, 3), second=torch.zeros(3, 3)), r"second must have the shape of images"),
        (lambda: UnlabelledBatch(torch.zeros(2, 3), indices=torch.zeros(2)), r"indices must be int64 of shape \(2,\)"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_lies_at_the_limits_is_allowed():
    assert VAT(power_iterations=0).power_iterations == 0
    assert TemporalEnsembling(1, 1, alpha=0).alpha == 0
    assert MeanTeacher(student(), teacher_decay=0, ramp_up_teacher_decay=0).teacher_decay == 0


def test_logits_of_another_number_of_classes_are_refused():
    view = UnlabelledBatch(torch.zeros(2, 3), indices=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=rf"logits must be \(N, {CLASSES}\), got \(2, {CLASSES + 1}\)"):
        TemporalEnsembling(4, CLASSES)(nn.Identity(), view, torch.zeros(2, CLASSES + 1))


def test_a_teacher_is_not_trained():
    assert not any(parameter.requires_grad for parameter in MeanTeacher(student()).parameters())


def test_indices_beyond_the_training_set_are_refused_before_anything_changes():
    regulariser = TemporalEnsembling(4, CLASSES)
    view = UnlabelledBatch(torch.zeros(2, 3), indices=torch.tensor([1, 4]))
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        regulariser(nn.Identity(), view, torch.zeros(2, CLASSES))
    assert int(regulariser.seen.sum()) == 0
