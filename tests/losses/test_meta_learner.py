"""Meta-learned covariances: second-order gradients against unrolled steps and finite differences in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isda import ISDALoss
from isda.covariance import FullCovariance, ScaledCovariance
from isda.losses.long_tail import AdamMoments, MetaLearner, meta_gradient

C, A, RATE = 3, 4, 0.4


def problem(**settings):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, A), nn.BatchNorm1d(A), nn.Tanh(), nn.Linear(A, C)).double()
    model = ScaledCovariance(FullCovariance(C, A, dtype=torch.float64))
    criterion = ISDALoss.attach(network, lambda_0=1.5, covariance=model, **({"schedule": "constant"} | settings))
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 2
    y[-1] = 2
    criterion(network(x), y)  # statistics
    with torch.no_grad():
        model.log_scale.copy_(0.3 * torch.randn(C, A, dtype=torch.float64))
    balanced = torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 3
    return network, criterion, (x, y), balanced


def unrolled(network, criterion, batch, balanced, log_scale, weight=None):
    """M(theta - rate dL(theta, s)/dtheta), step by step, with explicit matrices; batch norm by hand."""

    def features_and_logits(parameters, x):
        first, first_bias, scale, shift, head, bias = parameters
        hidden = x @ first.t() + first_bias
        centred = hidden - hidden.mean(0)
        hidden = scale * centred / (centred.square().mean(0) + 1e-5).sqrt() + shift
        return torch.tanh(hidden) @ head.t() + bias

    theta = [p.detach().clone().requires_grad_() for p in network.parameters()]
    logits, head = features_and_logits(theta, batch[0]), theta[4]
    rows = []
    for z, y in zip(logits, batch[1].tolist(), strict=True):
        stretch = torch.diag(log_scale[y].exp())
        sigma = stretch @ criterion.covariance.base.covariance(y) @ stretch
        rows.append(torch.stack([z[j] + 1.5 / 2 * (head[j] - head[y]) @ sigma @ (head[j] - head[y]) for j in range(C)]))
    loss = F.cross_entropy(torch.stack(rows), batch[1], weight, reduction="none").mean()
    slopes = torch.autograd.grad(loss, theta, create_graph=True)
    moved = [p - RATE * slope for p, slope in zip(theta, slopes, strict=True)]
    return F.cross_entropy(features_and_logits(moved, balanced[0]), balanced[1])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_the_unrolled_step_and_of_finite_differences(weighted):
    weight = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64) if weighted else None
    network, criterion, batch, balanced = problem(class_weight=weight)
    before = copy.deepcopy(network.state_dict())
    found = MetaLearner(criterion).gradient(network, batch, balanced, RATE)
    scales = criterion.covariance.log_scale.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(unrolled(network, criterion, batch, balanced, scales, weight), scales)
    assert float(expected.abs().max()) > 1e-4
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-8)
    step = 1e-5
    for index in [(0, 1), (1, 3)]:
        values = []
        for sign in (1, -1):
            moved = scales.detach().clone()
            moved[index] += sign * step
            values.append(float(unrolled(network, criterion, batch, balanced, moved, weight).detach()))
        assert float(found[index]) == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-8)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert not criterion.covariance.log_scale.requires_grad


def test_steps_lower_the_loss_they_are_made_for():
    network, criterion, batch, balanced = problem()
    learner, values = MetaLearner(criterion, lr=0.05), []
    for _ in range(30):
        values.append(float(unrolled(network, criterion, batch, balanced, criterion.covariance.log_scale).detach()))
        learner.step(network, batch, balanced, RATE)
    assert values[-1] < values[0] - 1e-3
    assert values[-1] == pytest.approx(min(values), abs=1e-3)


def test_without_strength_nothing_is_done():
    network, criterion, batch, balanced = problem(schedule="linear", total_steps=10)
    criterion.set_step(0)
    learner = MetaLearner(criterion)
    before = criterion.covariance.log_scale.clone()
    learner.step(network, batch, balanced, RATE)
    assert torch.equal(criterion.covariance.log_scale, before)
    assert int(learner.moments.steps) == 0


def test_the_moments_are_those_of_adam():
    mine, theirs = (torch.ones(3, dtype=torch.float64) for _ in range(2))
    theirs.requires_grad_()
    moments, adam = AdamMoments(mine), torch.optim.Adam([theirs], lr=0.1)
    for seed in range(5):
        theirs.grad = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        moments.descend(mine, theirs.grad, lr=0.1)
        adam.step()
    torch.testing.assert_close(mine, theirs.detach(), atol=1e-12, rtol=0)


def test_a_gradient_that_does_not_depend_on_what_is_learned_is_zero():
    theta, learned = torch.tensor(1.0), torch.tensor([2.0], requires_grad=True)
    assert meta_gradient(lambda p: p[0] ** 2, lambda p: p[0], [theta], learned, 0.1).tolist() == [0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda c: MetaLearner(ISDALoss(C, A, schedule="constant")),
            "criterion must have a ScaledCovariance, got FullCovariance",
        ),
        (lambda c: MetaLearner(c, lr=-1), "lr must be a finite number >= 0, got -1"),
    ],
)
def test_what_cannot_be_trained_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(problem()[1])


def test_the_tilted_bound_is_refused():
    scaled = ScaledCovariance(FullCovariance(C, A))
    with pytest.raises(ValueError, match="criterion must have bound=\"jensen\", got 'tilted'"):
        MetaLearner(ISDALoss(C, A, covariance=scaled, bound="tilted", schedule="constant"))
