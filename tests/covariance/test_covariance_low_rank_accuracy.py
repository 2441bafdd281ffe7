"""Low rank at ImageNet scale, and how close its margin variances come to those of the full covariance."""

from __future__ import annotations

import pytest
import torch

from isda import ISDALoss, covariance


def test_imagenet_shape_takes_less_than_300_megabytes_and_a_step_runs_with_exact_traces():
    classes, dim, rows = 1000, 2048, 256
    generator = torch.Generator().manual_seed(0)
    criterion = ISDALoss(classes, dim, lambda_0=1.0, covariance="low_rank", rank=16, schedule="constant")
    model = criterion.covariance
    assert sum(t.numel() * t.element_size() for t in model.state_dict().values()) <= 300e6
    weight = (torch.randn(classes, dim, generator=generator) / dim**0.5).requires_grad_()
    # Few enough classes that sketches overflow, in a stream of two batches.
    features = torch.relu(torch.randn(rows, dim, generator=generator))
    targets = 100 * torch.randint(5, (rows,), generator=generator)
    logits = (features @ weight.detach().T).requires_grad_()
    for part in torch.arange(rows).split(rows // 2):
        model.update(features[part], targets[part])
    model.reset()
    loss = criterion(logits, targets, features=features, weight=weight)
    loss.backward()
    assert torch.isfinite(loss)
    assert weight.grad.isfinite().all()
    assert weight.grad.any()
    assert logits.grad.any()
    assert (model.fill[::100][:5] <= 32).all()
    for c in range(0, 500, 100):
        exact = float(features[targets == c].double().var(0, correction=0).sum())
        diagonal, sketch = model.factors(torch.tensor([c]))
        assert float(diagonal.sum() + sketch.square().sum()) == pytest.approx(exact, rel=1e-4)


@pytest.fixture(scope="module")
def spectrum():
    """Full and low-rank statistics of 20 classes whose covariances have a 1/k spectrum, and a trained classifier."""
    classes, dim, each, rank = 20, 256, 1500, 16
    generator = torch.Generator().manual_seed(0)
    deviation = torch.arange(1, dim + 1).double().rsqrt().float()
    centres = 0.5 * torch.randn(classes, dim, generator=generator)
    blocks = []
    for c in range(classes):
        basis, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
        blocks.append(centres[c] + (torch.randn(each, dim, generator=generator) * deviation) @ basis.T)
    features, targets = torch.cat(blocks), torch.arange(classes).repeat_interleave(each)
    order = torch.randperm(len(features), generator=generator)
    full = covariance.create("full", classes, dim)
    low_rank = covariance.create("low_rank", classes, dim, rank=rank)
    head = torch.nn.Linear(dim, classes)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    for part in order.split(256):
        full.update(features[part], targets[part])
        low_rank.update(features[part], targets[part])
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(features[part]), targets[part]).backward()
        optimiser.step()
    accuracy = float((head(features).argmax(1) == targets).float().mean())
    assert accuracy > 0.9  # it did learn
    return full, low_rank, {"random": torch.randn(classes, dim, generator=generator), "trained": head.weight.detach()}


@pytest.mark.parametrize("which", ["random", "trained"])
def test_margin_variances_have_at_most_6_percent_median_error_on_a_1_over_k_spectrum(spectrum, which):
    full, low_rank, weights = spectrum
    weight, everything = weights[which], torch.arange(20)
    exact = full.margin_variance(weight, everything)
    approximate = low_rank.margin_variance(weight, everything)
    off_diagonal = ~torch.eye(20, dtype=torch.bool)
    errors = ((approximate - exact).abs() / exact)[off_diagonal]
    assert float(errors.median()) <= 0.06


def test_traces_are_exact_on_the_same_stream(spectrum):
    full, low_rank, _ = spectrum
    for c in range(20):
        assert float(low_rank.covariance(c).trace()) == pytest.approx(float(full.covariance(c).trace()), rel=1e-4)
