"""How far above the true expectation the bounds lie, on held-out features of a trained net (scikit-learn's digits)."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from isda import ISDALoss

PAIRS = 4000


@pytest.fixture(scope="module", params=["cross-entropy", "isda"])
def trained(request):
    """A small net trained on half of the digits, its criterion, and the other half."""
    generator = torch.Generator().manual_seed(0)
    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=generator)
    images, labels = (images[order] / 16).float(), labels[order]
    train, held_out = slice(0, 900), slice(900, None)
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10)
    lambda_0 = 0.5 if request.param == "isda" else 0.0
    steps = 300
    criterion = ISDALoss(10, 32, lambda_0, total_steps=steps)
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(0, 900, (64,), generator=generator)
        features = body(images[train][batch])
        loss = criterion(head(features), labels[train][batch], features=features, weight=head.weight)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        logits = head(body(images[held_out]))
    assert (logits.argmax(1) == labels[held_out]).float().mean() > 0.9
    # Fresh statistics: those of the net as it is now, on the images it was trained on.
    criterion.covariance.reset()
    with torch.no_grad():
        criterion.covariance.update(body(images[train]), labels[train])
    return criterion.double(), logits.double(), labels[held_out], head.weight.detach().double()


def expectation(criterion, logits, targets, weight, strength):
    """(N,) Monte-Carlo means of the augmented loss and their standard errors, with antithetic pairs of logits."""
    generator = torch.Generator().manual_seed(1)
    means, errors = torch.empty(len(logits)).double(), torch.empty(len(logits)).double()
    for c in range(10):
        rows = targets == c
        values, vectors = torch.linalg.eigh(weight @ criterion.covariance.covariance(c) @ weight.t())
        root = vectors * values.clamp_min(0).sqrt()
        noise = torch.randn(int(rows.sum()), PAIRS, 10, generator=generator, dtype=torch.float64)
        shift = math.sqrt(strength) * noise @ root.t()
        losses = [-torch.log_softmax(logits[rows].unsqueeze(1) + sign * shift, 2)[..., c] for sign in (1, -1)]
        pairs = (losses[0] + losses[1]) / 2
        means[rows], errors[rows] = pairs.mean(1), pairs.std(1) / math.sqrt(PAIRS)
    return means, errors


def bound(criterion, name, logits, targets, weight, strength):
    criterion.bound = name
    augmented = criterion.augmented_logits(logits, targets, weight=weight, strength=strength)
    return torch.logsumexp(augmented, 1) - logits.gather(1, targets.unsqueeze(1)).squeeze(1)


def minimum(criterion, logits, targets, weight, strength):
    """(N,) the least tilted bound, by a long search whose result the dual certifies to be within 1e-6 of it."""
    weight = weight - weight.mean(0)
    forms = strength * weight @ torch.stack([criterion.covariance.covariance(c) for c in range(10)]) @ weight.t()
    forms = forms[targets]
    fixed = logits + forms.diagonal(dim1=1, dim2=2) / 2
    share = torch.log_softmax(torch.zeros_like(fixed), 1)
    size = 1 / (1 + torch.linalg.matrix_norm(forms, ord=2).unsqueeze(1))
    for _ in range(20_000):
        target = fixed - torch.bmm(forms, share.exp().unsqueeze(2)).squeeze(2)
        share = torch.log_softmax((1 - size) * share + size * target, 1)
    share = share.exp()
    cross = torch.bmm(forms, share.unsqueeze(2)).squeeze(2)
    above = torch.logsumexp(fixed - cross, 1) + (share * cross).sum(1) / 2
    below = (share * (fixed - cross / 2)).sum(1) + torch.special.entr(share).sum(1)
    assert (above - below).quantile(0.95) < 1e-4
    return below - logits.gather(1, targets.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("strength", [pytest.param(0.5, marks=pytest.mark.slow), 5.0])
def test_the_tilted_bound_is_within_a_hundredth_of_a_nat_of_the_minimum(trained, strength):
    criterion, logits, targets, weight = trained
    logits, targets = logits[:200], targets[:200]
    tilted, jensen = (bound(criterion, name, logits, targets, weight, strength) for name in ("tilted", "jensen"))
    gap = tilted - minimum(criterion, logits, targets, weight, strength)
    assert gap.min() > -1e-6
    assert gap.quantile(0.95) < 0.01
    assert (tilted <= jensen + 1e-12).all()


@pytest.mark.parametrize("strength", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_tilted_gap_is_at_most_two_fifths_of_the_published_one(trained, strength):
    criterion, logits, targets, weight = trained
    truth, error = expectation(criterion, logits, targets, weight, strength)
    tilted, jensen = (bound(criterion, name, logits, targets, weight, strength) for name in ("tilted", "jensen"))
    gap, published = (tilted - truth).mean(), (jensen - truth).mean()
    uncertainty = error.square().sum().sqrt() / len(truth)
    assert published > 50 * uncertainty  # the estimate is precise enough to tell
    assert gap + 2 * uncertainty <= 0.4 * published, f"ratio {gap / published:.3f}"
    assert (tilted <= jensen + 1e-12).all()
    assert (tilted >= truth - 4 * error).all()
