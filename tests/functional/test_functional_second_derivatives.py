"""Second derivatives of every bound with every covariance model, against finite differences of the gradient."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradgradcheck

from isda import ISDALoss
from isda.covariance import MODELS, CovarianceModel, create
from isda.functional import jensen_bound, jensen_consistency, tilted_bound, tilted_consistency, tilted_variance
from isda.functional.tilt import FEW

C, A, N = 4, 3, 3
STEPS = 8
"""So many that the search has converged to rounding, which finite differences need."""


def learned(name: str, num_classes: int = C, dim: int = A) -> CovarianceModel:
    """A model that has seen six features of every class."""
    generator = torch.Generator().manual_seed(0)
    settings = {"rank": 2} if name in ("low_rank", "learned") else {}
    model = create(name, num_classes, dim, dtype=torch.float64, **settings)
    targets = torch.arange(num_classes).repeat(6)
    model.update(torch.randn(len(targets), dim, generator=generator, dtype=torch.float64), targets)
    return model


def batch(num_classes: int = C, dim: int = A, n: int = N, seed: int = 1):
    """Logits and weights that require gradients, and targets."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    weight = torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), weight.requires_grad_(), torch.arange(n) % num_classes


def inputs_of(model: CovarianceModel, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors, and what is trained of the model."""
    return (*tensors, *model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_jensen(name: str) -> None:
    model, (logits, weight, targets) = learned(name), batch()

    def bound(logits, weight, *_):
        return jensen_bound(logits, targets, model.margin_variance(weight, targets), 0.8)

    assert gradgradcheck(bound, inputs_of(model, logits, weight))


@pytest.mark.parametrize("name", MODELS)
def test_tilted(name: str) -> None:
    model, (logits, weight, targets) = learned(name), batch()
    assert gradgradcheck(
        lambda z, w, *_: tilted_bound(z, targets, w, model, 0.8, STEPS), inputs_of(model, logits, weight)
    )


@pytest.mark.parametrize("name", MODELS)
def test_consistency_at_a_constant_prediction(name: str) -> None:
    model, (logits, weight, _) = learned(name), batch()
    prediction = torch.softmax(logits.detach(), 1)

    def tilted(z, w, *_):
        variance = tilted_variance(z, prediction, prediction.argmax(1), w, model, 0.8, STEPS)
        return torch.logsumexp(z + 0.4 * variance, 1) - (prediction * z).sum(1)

    assert torch.equal(tilted(logits, weight), tilted_consistency(logits, weight, model, 0.8, STEPS))
    assert gradgradcheck(tilted, inputs_of(model, logits, weight))
    # Without a gradient the logits, and with them the prediction, do not move.
    assert gradgradcheck(lambda w, *_: jensen_consistency(logits.detach(), w, model, 0.8), inputs_of(model, weight))


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("shape", [(), (2, 2)], ids=["rows", "pixels"])
def test_criterion(bound: str, shape: tuple[int, ...]) -> None:
    # Labels of pixels are finer than the logits here, so that the loss is not the one that the tilt minimises.
    generator = torch.Generator().manual_seed(2)
    criterion = ISDALoss(C, A, covariance="full", bound=bound, tilt_steps=STEPS, dtype=torch.float64)
    rows = torch.randn(6 * C, A, generator=generator, dtype=torch.float64)
    criterion.covariance.update(rows, torch.arange(6 * C) % C)
    weight = torch.randn(C, A, generator=generator, dtype=torch.float64).requires_grad_()
    features = torch.randn(N, A, *shape, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(C, (N, *(2 * size for size in shape)), generator=generator)

    def loss(features, weight):
        logits = torch.einsum("na...,ca->nc...", features, weight)
        with criterion.held():
            return criterion(logits, targets, features=features, weight=weight, strength=0.8)

    assert gradgradcheck(loss, (features, weight))


def test_hessian_is_that_of_finite_differences_with_the_default_number_of_steps() -> None:
    model, (logits, _, targets) = learned("full"), batch()
    weight = torch.randn(C, A, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2

    def value(z):
        return tilted_bound(z, targets, weight, model, 0.8).sum()

    hessian = torch.autograd.functional.hessian(value, logits.detach()).view(N * C, -1)
    step = 1e-3
    shifts = step * torch.eye(N * C, dtype=torch.float64).view(-1, N, C)
    expected = torch.stack(
        [
            torch.stack(
                [
                    value(logits + a + b) - value(logits + a - b) - value(logits - a + b) + value(logits - a - b)
                    for b in shifts
                ]
            )
            for a in shifts
        ]
    ) / (4 * step**2)
    # Differences of differences: rounding 1e-16 / step^2 and a remainder of step^2.
    torch.testing.assert_close(hessian, expected.detach(), atol=2e-6, rtol=0)


def test_many_classes() -> None:
    # Beyond FEW classes the tilt found is nearly the minimiser, and so is the derivative.
    number = FEW + 10
    model, (logits, weight, targets) = learned("diagonal", number, 8), batch(number, 8, 2)
    weight = weight.detach() / 4

    def gradient(z, create_graph=False):
        z = z.detach().requires_grad_()
        value = tilted_bound(z, targets, weight, model, 1.0, 12).sum()
        return z, torch.autograd.grad(value, z, create_graph=create_graph)[0]

    z, first = gradient(logits, create_graph=True)
    direction = torch.randn(z.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    (along,) = torch.autograd.grad(first, z, direction)
    expected = (gradient(logits + 1e-4 * direction)[1] - gradient(logits - 1e-4 * direction)[1]) / 2e-4
    torch.testing.assert_close(along, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_first_derivative_is_the_same_with_create_graph(name: str) -> None:
    model, (logits, weight, targets) = learned(name), batch()
    # One step of the search: far from the minimum, where the tilt matters to the first order.
    gradients = [
        torch.autograd.grad(
            tilted_bound(logits, targets, weight, model, 3.0, 1).sum(), (logits, weight), create_graph=create
        )
        for create in (False, True)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


def test_a_gradient_penalty_adds_to_the_gradient() -> None:
    model, (logits, weight, targets) = learned("full"), batch()

    def terms():
        value = tilted_bound(logits, targets, weight, model, 0.8, STEPS).sum()
        (slope,) = torch.autograd.grad(value, logits, create_graph=True)
        return value, slope.square().sum()

    together = torch.autograd.grad(sum(terms()), weight)[0]
    apart = sum(torch.autograd.grad(term, weight, retain_graph=True)[0] for term in terms())
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-10)


def test_at_the_published_tilt_it_is_the_published_bound() -> None:
    model, (logits, weight, targets) = learned("full"), batch()

    def second(value):
        (first,) = torch.autograd.grad(value.sum(), weight, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    tilted = second(tilted_bound(logits, targets, weight, model, 0.8, 0))
    jensen = second(jensen_bound(logits, targets, model.margin_variance(weight, targets), 0.8))
    torch.testing.assert_close(tilted, jensen, rtol=1e-9, atol=1e-9)


def test_third_derivatives_are_refused() -> None:
    model, (logits, weight, targets) = learned("full"), batch()
    (first,) = torch.autograd.grad(tilted_bound(logits, targets, weight, model, 0.8).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r"third derivatives|once_differentiable"):
        torch.autograd.grad(second.sum(), weight)


def test_statistics_that_changed_in_between_are_refused() -> None:
    model, (logits, weight, targets) = learned("diagonal"), batch()
    value = tilted_bound(logits, targets, weight, model, 0.8).sum()
    model.update(torch.zeros(1, A, dtype=torch.float64), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="statistics were updated between a forward pass and its backward pass"):
        torch.autograd.grad(value, weight, create_graph=True)
