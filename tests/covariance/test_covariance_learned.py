"""Learned covariances: gradients reach the factor, and the uncertainty loss keeps it from collapsing."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

from isda import ISDALoss
from isda.covariance import LearnedCovariance

C, A = 3, 4


def train(margin: float | None, bound: str) -> tuple[ISDALoss, torch.Tensor]:
    """The mean entropy after a short training of head and factor on three blobs, with or without the extra loss."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(C, A, generator=generator)
    criterion = ISDALoss(C, A, lambda_0=1.0, covariance="learned", bound=bound)
    head = torch.nn.Linear(A, C)
    optimiser = torch.optim.Adam([*head.parameters(), *criterion.parameters()], lr=0.05)
    for _ in range(60):
        targets = torch.randint(C, (32,), generator=generator)
        features = centres[targets] + torch.randn(32, A, generator=generator)
        loss = criterion(head(features), targets, features=features, weight=head.weight)
        if margin is not None:
            loss = loss + criterion.covariance.uncertainty_loss(margin)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    factor = criterion.covariance.factor.detach()
    normal = MultivariateNormal(torch.zeros(A), factor @ factor.mT + 1e-12 * torch.eye(A))
    return criterion, normal.entropy().mean()


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_uncertainty_loss_keeps_the_entropy_that_training_alone_would_lose(bound):
    start = MultivariateNormal(torch.zeros(A), torch.eye(A)).entropy()
    _, alone = train(None, bound)
    _, kept = train(float(start), bound)
    assert alone < start - 0.5
    assert kept > start - 0.1


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_every_class_in_the_batch_moves_its_factor(bound):
    criterion = ISDALoss(C, A, lambda_0=1.0, covariance="learned", bound=bound)
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
