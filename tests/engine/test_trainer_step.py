"""Training steps against the equations: ISDA's bound by loops, then Nesterov momentum by hand, all in float64."""

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.engine import State, learning_rate
from oracles import batch_covariance, jensen_bound
from small_runs import digits, small_config, small_job


def by_hand(config, batches, lambda_0):
    """The parameters after each step: g = gradient + decay p, v = m v + g, p -= lr (g + m v)."""
    torch.manual_seed(config.seed)
    network = networks.create(config.network, num_classes=10, **config.network_options).double().train()
    parameters = list(network.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    seen_features, seen_targets, history = [], [], []
    for step, batch in enumerate(batches):
        features = network.features(batch.images.double())
        logits = network.classifier(features)
        if lambda_0 is None:
            loss = nn.functional.cross_entropy(logits, batch.targets)
        else:
            seen_features.append(features.detach())
            seen_targets.append(batch.targets)
            covariances = batch_covariance(torch.cat(seen_features), torch.cat(seen_targets), 10)
            strength = lambda_0 * step / config.total_steps
            loss = jensen_bound(logits, batch.targets, network.classifier.weight, covariances, strength).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                gradient = gradient + config.weight_decay * p
                velocity.mul_(config.momentum).add_(gradient)
                p.sub_(learning_rate(config, step) * (gradient + config.momentum * velocity))
        history.append([p.detach().clone() for p in parameters])
    return history


@pytest.mark.parametrize(("method", "lambda_0"), [("cross-entropy", None), ("isda:lambda_0=3", 3.0)])
def test_steps_equal_those_by_hand(method, lambda_0):
    settings = {"precision": "float64", "width": 0.1, "weight_decay": 0.01, "lr": 0.05, "augment": "translate"}
    job = small_job(method=method, epochs=1, **settings)
    batches = list(job.batches(0))
    expected = by_hand(job.config, batches, lambda_0)
    for step, batch in enumerate(batches):
        job.step(batch, step)
        for mine, theirs in zip(job.network.parameters(), expected[step], strict=True):
            torch.testing.assert_close(mine.detach(), theirs, rtol=1e-9, atol=1e-9)


def test_the_first_steps_change_every_parameter():
    job = small_job()
    before = [p.detach().clone() for p in job.network.parameters()]
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert not any(torch.equal(p, q) for p, q in zip(before, job.network.parameters(), strict=True))


def test_methods_of_one_seed_start_alike_and_see_the_same_batches():
    one, other = small_job(method="cross-entropy", seed=2), small_job(method="isda-tilted", seed=2)
    for mine, theirs in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(one.batches(1), other.batches(1), strict=True):
        assert torch.equal(mine.images, theirs.images)


def test_another_seed_starts_elsewhere():
    one, other = small_job(seed=1), small_job(seed=2)
    assert not torch.equal(one.network.classifier.weight, other.network.classifier.weight)


def test_the_randomness_of_a_step_does_not_depend_on_what_came_before():
    # Dropout draws from the global generator, which anybody may have used.
    jobs = [small_job(network="resnet-8", dropout=0.5) for _ in range(2)]
    batch = next(jobs[0].batches(0))
    for noise, job in enumerate(jobs):
        torch.rand(7 * noise)
        job.step(batch, 5)
    weights = [job.network.classifier.weight for job in jobs]
    assert torch.equal(*weights)


def test_dropout_differs_from_step_to_step():
    job = small_job(network="resnet-8", dropout=0.5, lr=0.0, method="cross-entropy")
    batch = next(job.batches(0))
    losses = []
    for step in range(3):
        job.step(batch, step)
        losses.append(float(job.sums.pop("loss")))
    assert len(set(losses)) == 3


def test_an_epochs_figures_are_means_over_its_samples():
    job = small_job(method="isda:lambda_0=2", precision="float64")
    wrong, losses = 0, []
    job.method.register_forward_hook(lambda module, inputs, outcome: outcomes.append((inputs[1], outcome)))
    outcomes = []
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    for batch, (terms, logits) in outcomes:
        losses.append(terms["isda"].item())
        wrong += int((logits.argmax(1) != batch.targets).sum())
    metrics = job.finish_epoch(1, 5)
    assert metrics["train/loss"] == metrics["train/isda"] == pytest.approx(sum(losses) / 5, rel=1e-12)
    assert metrics["train/error"] == pytest.approx(wrong)
    assert metrics["strength"] == pytest.approx(2 * 5 / 10)
    assert metrics["learning_rate"] == learning_rate(job.config, 4)
    assert (metrics["epoch"], metrics["step"]) == (1, 5)


def test_the_next_epochs_figures_start_from_nothing():
    job = small_job(lr=0.0, method="cross-entropy")
    lines = []
    for epoch in (0, 1):
        for step, batch in enumerate(job.batches(0), start=5 * epoch):
            job.step(batch, step)
        lines.append(job.finish_epoch(epoch + 1, 5 * (epoch + 1)))
    # The same batches and the same weights.
    assert lines[0]["train/loss"] == pytest.approx(lines[1]["train/loss"], rel=1e-12)
    assert lines[0]["train/error"] == lines[1]["train/error"]


def test_epochs_that_are_not_measured_have_no_test_figures():
    job = small_job(epochs=4, evaluate_every=3)
    measured = []
    for epoch in range(1, 5):
        job.step(next(job.batches(0)), 5 * epoch - 1)
        measured.append("test/error" in job.finish_epoch(epoch, 5 * epoch))
    assert measured == [False, False, True, True]


def test_the_test_figures_are_those_of_the_network_on_the_test_images():
    job = small_job()
    job.step(next(job.batches(0)), 0)
    measures = job.finish_epoch(1, 5)
    config, data = small_config(), digits()
    network = job.network.eval()
    with torch.no_grad():
        images = (data.x_test.float() / 255 - config.mean[0]) / config.std[0]
        logits = network(images)
    assert measures["test/error"] == pytest.approx(100 * (logits.argmax(1) != data.y_test).double().mean().item())
    assert measures["test/nll"] == pytest.approx(nn.functional.cross_entropy(logits, data.y_test).item(), rel=1e-4)


def test_a_checkpoint_with_an_average_does_not_fit_a_run_without_one():
    """By an error that python -O does not remove."""
    with pytest.raises(ValueError, match="does not fit this run: expected Module, got None"):
        small_job().restore(State({"average": {}}, {}))
