"""ISDALoss inside torch.compile(fullgraph=True): no break, no recompilation, loss and state of the eager path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from isda import ISDALoss
from isda.covariance import MODELS

C, A, N = 4, 5, 12


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


FAST = {("full", "jensen"), ("full", "tilted"), ("diagonal", "jensen"), ("low_rank", "jensen")}
"""Fifty compiled steps of the others take minutes."""


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, A), nn.Tanh(), nn.Linear(A, C)).to(dtype)


def batches(number: int, dtype: torch.dtype = torch.float64, size: int = N) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, generator=generator, dtype=dtype), torch.randint(C, (size,), generator=generator))
        for _ in range(number)
    ]


def attached(model: nn.Module, covariance: str, bound: str, **settings: Any) -> ISDALoss:
    if covariance in ("low_rank", "learned"):
        settings["rank"] = 2
    return ISDALoss.attach(model, lambda_0=1.0, total_steps=40, covariance=covariance, bound=bound, **settings)


def compiled(function: Callable[..., Tensor], backend: str = "aot_eager"):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True), counter


def train(
    model: nn.Module, criterion: ISDALoss, step: Callable[[Tensor, Tensor], Tensor], data: list[tuple[Tensor, Tensor]]
) -> list[float]:
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.05)
    losses = []
    for x, y in data:
        loss = step(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same(first: nn.Module, second: nn.Module, tolerance: float) -> None:
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("covariance", "bound"),
    [
        pytest.param(model, bound, marks=() if (model, bound) in FAST else pytest.mark.slow)
        for model in MODELS
        for bound in ("jensen", "tilted")
    ],
)
def test_fifty_steps_equal_the_eager_path_resumed_in_the_middle(covariance: str, bound: str) -> None:
    data = batches(50)
    plain_model, model = network(), network()
    plain, criterion = attached(plain_model, covariance, bound), attached(model, covariance, bound)
    expected = train(plain_model, plain, lambda x, y: plain(plain_model(x), y), data)
    backend = "aot_eager" if covariance in ("full", "diagonal") else "eager"
    step, counter = compiled(lambda x, y: criterion(model(x), y), backend)
    losses = train(model, criterion, step, data[:5])
    warm = counter.frame_count
    assert warm <= 2
    losses += train(model, criterion, step, data[5:25])
    state = copy.deepcopy(criterion.state_dict())
    criterion.covariance.reset()
    criterion.set_step(0)
    criterion.load_state_dict(state)
    losses += train(model, criterion, step, data[25:])
    assert counter.frame_count == warm
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-10, atol=1e-10)
    assert_same(model, plain_model, 1e-10)
    assert_same(criterion, plain, 1e-10)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_float32(bound: str, backend: str) -> None:
    data = batches(50 if backend == "inductor" else 20, torch.float32)
    plain_model, model = network(torch.float32), network(torch.float32)
    plain, criterion = attached(plain_model, "full", bound), attached(model, "full", bound)
    expected = train(plain_model, plain, lambda x, y: plain(plain_model(x), y), data)
    step, _ = compiled(lambda x, y: criterion(model(x), y), backend)
    losses = train(model, criterion, step, data)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_no_recompilation_over_modes_strengths_and_batch_sizes(covariance: str, bound: str) -> None:
    model = network()
    criterion = attached(model, covariance, bound)
    step, counter = compiled(lambda x, y: criterion(model(x), y), "eager")
    x, y = batches(1)[0]

    def epoch(*sizes: int) -> None:
        criterion.train(), model.train()
        for size in sizes:
            step(x[:size], y[:size])
        criterion.eval(), model.eval()
        with torch.no_grad():
            loss = step(x, y)
        torch.testing.assert_close(loss, nn.functional.cross_entropy(model(x), y))

    epoch(12, 7)  # the first size, and any size
    seen = counter.frame_count
    epoch(12, 9, 5)
    criterion.set_step(17)
    epoch(12, 6)
    assert counter.frame_count == seen


@pytest.mark.parametrize("bound", ["jensen", pytest.param("tilted", marks=pytest.mark.slow)])
def test_features_and_weight_by_hand(bound: str) -> None:
    model = network()
    plain = ISDALoss(C, A, lambda_0=1.0, total_steps=4, covariance="full", bound=bound, dtype=torch.float64)
    criterion = copy.deepcopy(plain)

    def loss_of(criterion: ISDALoss, x: Tensor, y: Tensor, **settings: Any) -> Tensor:
        features = model[1](model[0](x))
        return criterion(model[2](features), y, features=features, weight=model[2].weight, **settings)

    step, counter = compiled(lambda x, y, strength=None: loss_of(criterion, x, y, strength=strength))
    for x, y in batches(3):
        torch.testing.assert_close(step(x, y), loss_of(plain, x, y), rtol=1e-10, atol=1e-12)
    soft = torch.softmax(torch.randn(N, C, dtype=torch.float64), 1)
    torch.testing.assert_close(step(x, soft), loss_of(plain, x, soft), rtol=1e-10, atol=1e-12)
    for strength in (0.3, 0.4, 0.5):
        torch.testing.assert_close(step(x, y, strength), loss_of(plain, x, y, strength=strength))
    seen = counter.frame_count
    torch.testing.assert_close(step(x, y, 0.6), loss_of(plain, x, y, strength=0.6))
    assert counter.frame_count == seen
    assert_same(criterion, plain, 1e-10)
    with criterion.held(), plain.held():
        torch.testing.assert_close(step(x, y), loss_of(plain, x, y, strength=0.6))
    assert_same(criterion, plain, 1e-10)


@pytest.mark.parametrize("bound", ["jensen", pytest.param("tilted", marks=pytest.mark.slow)])
def test_pixels(bound: str) -> None:
    torch.manual_seed(2)
    body, head = nn.Conv2d(3, A, 1).double(), nn.Conv2d(A, C, 1).double()
    model = nn.Sequential(body, nn.Tanh(), head)
    plain = ISDALoss.attach(copy.deepcopy(model), 1.0, 4, covariance="diagonal", bound=bound, ignore_index=255)
    criterion = ISDALoss.attach(model, 1.0, 4, covariance="diagonal", bound=bound, ignore_index=255)
    twin = plain._recorder.hooks[0].head  # the classifier of the copy
    assert twin is not None
    step, _ = compiled(lambda x, y: criterion(model(x), y))
    for _ in range(3):
        x, y = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randint(C, (2, 8, 8))
        y[0, :3] = 255
        features = torch.tanh(body(x))
        expected = plain(head(features), y, features=features, weight=head.weight)
        torch.testing.assert_close(step(x, y), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bound", ["jensen", pytest.param("tilted", marks=pytest.mark.slow)])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "shared"])
def test_consistency(covariance: str, bound: str) -> None:
    model = network()
    criterion = attached(model, covariance, bound)
    for x, y in batches(3):
        criterion(model(x), y)
    step, _ = compiled(lambda x: criterion.consistency(model(x)))
    expected, loss = criterion.consistency(model(x)), step(x)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(value, model.parameters()) for value in (loss, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_bad_rows_are_left_out_and_reported_by_eval() -> None:
    model = network()
    criterion = attached(model, "full", "jensen")
    step, _ = compiled(lambda x, y: criterion(model(x), y), "eager")
    x, y = batches(1)[0]
    step(x.index_fill(0, torch.tensor([3]), torch.nan), y)
    assert int(criterion.covariance.count.sum()) == N - 1
    assert criterion.covariance.scatter.isfinite().all()
    with pytest.raises(ValueError, match="1 rows of features with NaN or infinity"):
        criterion.eval()


def test_logits_that_are_not_the_output_of_the_classifier_are_refused() -> None:
    model = network()
    criterion = attached(model, "full", "jensen")
    step, _ = compiled(lambda x, y: criterion(2 * model(x), y), "eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="must be the output of the classifier itself"):
        step(*batches(1)[0])


def test_accumulation_and_the_end_of_the_schedule() -> None:
    model = network()
    criterion = ISDALoss.attach(model, 1.0, 2)
    criterion.advance_every = 3
    step, _ = compiled(lambda x, y: criterion(model(x), y), "eager")
    steps = []
    for x, y in batches(10):
        step(x, y)
        steps.append(criterion.step)
    assert steps == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
