"""Learned covariances: gradients reach the factor, and the uncertainty loss keeps it from collapsing."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

from isda import ISDALoss
from isda.covariance import LearnedCovariance

C, A = 3, 4


def train(weight: float, bound: str, steps: int = 60) -> tuple[ISDALoss, torch.Tensor]:
    """The mean entropy after a short training of head and factor on three blobs, with or without the extra loss."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(C, A, generator=generator)
    criterion = ISDALoss(
        C, A, lambda_0=1.0, covariance="learned", bound=bound, uncertainty_weight=weight, schedule="constant"
    )
    head = torch.nn.Linear(A, C)
    optimiser = torch.optim.Adam([*head.parameters(), *criterion.parameters()], lr=0.05)
    for _ in range(steps):
        targets = torch.randint(C, (32,), generator=generator)
        features = centres[targets] + torch.randn(32, A, generator=generator)
        loss = criterion(head(features), targets, features=features, weight=head.weight)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    factor = criterion.covariance.factor.detach()
    normal = MultivariateNormal(torch.zeros(A), factor @ factor.mT + 1e-12 * torch.eye(A))
    return criterion, normal.entropy().mean()


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_uncertainty_loss_keeps_the_entropy_that_training_alone_would_lose(bound):
    start = MultivariateNormal(torch.zeros(A), torch.eye(A)).entropy()
    _, alone = train(0.0, bound)
    _, kept = train(1.0, bound)
    assert alone < start - 0.5
    assert kept > start - 0.1


def test_the_covariance_is_alive_after_hundreds_of_steps():
    criterion, entropy = train(1.0, "jensen", steps=300)
    assert entropy > criterion.covariance.uncertainty_margin - 0.1
    assert torch.linalg.eigvalsh(criterion.covariance.covariance(0)).max() > 0.5


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_criterion_adds_the_uncertainty_loss_once_per_sample(reduction):
    features, weight, targets = torch.randn(5, A), torch.randn(C, A), torch.tensor([0, 2, 0, 2, 2])
    losses = []
    for settings in ({"uncertainty_weight": 0.0}, {"uncertainty_weight": 0.25, "uncertainty_margin": 20.0}):
        criterion = ISDALoss(C, A, 1.0, covariance="learned", reduction=reduction, schedule="constant", **settings)
        losses.append(criterion(features @ weight.T, targets, features=features, weight=weight))
    term = 0.25 * criterion.covariance.uncertainty_loss(20.0)
    torch.testing.assert_close(losses[1] - losses[0], (5 * term if reduction == "sum" else term).expand_as(losses[0]))


def test_without_strength_or_in_eval_mode_it_is_the_cross_entropy():
    features, weight, targets = torch.randn(5, A), torch.randn(C, A), torch.tensor([0, 2, 0, 2, 2])
    criterion = ISDALoss(C, A, 0.0, covariance="learned", uncertainty_margin=50.0)
    expected = torch.nn.functional.cross_entropy(features @ weight.T, targets)
    assert torch.equal(criterion(features @ weight.T, targets, features=features, weight=weight), expected)
    criterion = ISDALoss(C, A, 1.0, covariance="learned", uncertainty_margin=50.0, schedule="constant").eval()
    assert torch.equal(criterion(features @ weight.T, targets), expected)


def test_samples_are_differentiable_in_the_factor():
    model = LearnedCovariance(C, A, rank=2, dtype=torch.float64)

    def draw(factor):
        return torch.func.functional_call(
            model, {"factor": factor}, (torch.tensor([1, 0]), 3, torch.Generator().manual_seed(0))
        )

    model.forward = lambda targets, n, generator: model.sample(targets, n, strength=0.5, generator=generator)
    factor = torch.randn(C, A, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(draw, (factor,))


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_every_class_in_the_batch_moves_its_factor(bound):
    criterion = ISDALoss(
        C, A, lambda_0=1.0, covariance="learned", bound=bound, uncertainty_weight=0, schedule="constant"
    )
    features, weight = torch.randn(5, A), torch.randn(C, A)
    criterion(features @ weight.T, torch.tensor([0, 2, 0, 2, 2]), features=features, weight=weight).backward()
    moved = criterion.covariance.factor.grad.flatten(1).any(1)
    assert moved.tolist() == [True, False, True]


def test_uncertainty_loss_moves_every_factor_below_the_margin_only():
    model = LearnedCovariance(C, A, scale=0.5)
    model.uncertainty_loss(margin=100.0).backward()
    assert model.factor.grad.flatten(1).any(1).all()
    model.factor.grad = None
    model.uncertainty_loss(margin=-100.0).backward()
    assert not model.factor.grad.any()


def test_start_has_orthogonal_directions_of_the_scale_asked_for():
    model = LearnedCovariance(C, A, rank=2, scale=0.5)
    expected = torch.diag(torch.tensor([0.25, 0.25, 0.0, 0.0]))
    for c in range(C):
        torch.testing.assert_close(model.covariance(c), expected)
