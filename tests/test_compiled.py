"""Model and criterion inside torch.compile(fullgraph=True): no break, no second compilation, the eager results."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from isda import ISDALoss
from loss_cases import KINDS, batch, integers, network, normal

DIFFERENTIATED = {("full", "jensen"), ("diagonal", "jensen"), ("within", "tilted")}
"""What is compiled with its backward pass, which takes seconds."""


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(kind: str, bound: str, backend: str | None, *, dtype=torch.float64, number: int = 6, **settings):
    """Losses, states and the number of graphs of some steps; a state is loaded in the middle."""
    if kind in ("low_rank", "learned"):
        settings["rank"] = 2
    model = network(dtype=dtype)
    criterion = ISDALoss.attach(model, 1.0, 4, covariance=kind, bound=bound, **settings)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.05)
    counter = CompileCounterWithBackend(backend or "eager")

    def loss_of(x, y):
        return criterion(model(x), y)

    step = loss_of if backend is None else torch.compile(loss_of, backend=counter, fullgraph=True, dynamic=False)
    losses, graphs = [], []
    for seed in range(number):
        x, y = batch(16, seed=seed, dtype=dtype)
        loss = step(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        graphs.append(counter.frame_count)
        if seed == number // 2:
            state = copy.deepcopy(criterion.state_dict())
            criterion.covariance.reset()
            criterion.load_state_dict(state)
    return losses, [dict(model.state_dict()), dict(criterion.state_dict())], graphs


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_equal_eager_ones_in_one_graph(kind, bound):
    losses, states, _ = train(kind, bound, None)
    backend = "aot_eager" if (kind, bound) in DIFFERENTIATED else "eager"
    actual, compiled, graphs = train(kind, bound, backend)
    torch.testing.assert_close(actual, losses, rtol=1e-9, atol=1e-9)
    for state in (*states, *compiled):
        state.pop("covariance.sketch", None)
    torch.testing.assert_close(compiled, states, rtol=1e-9, atol=1e-9)
    assert graphs[-1] == graphs[1] <= 2


@pytest.mark.parametrize("inputs", ["soft", "ignored", "pixels", "autocast"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_compiled_losses_and_gradients_by_hand_equal_eager_ones(bound, inputs):
    grid = (2, 3) if inputs == "pixels" else ()
    features, weight = normal(6, 5, *grid, seed=1), normal(4, 5, seed=2).requires_grad_()
    targets = integers(4, 6, *((4, 6) if grid else ()), seed=3)
    targets.view(-1)[0] = -100
    if inputs == "soft":
        targets = torch.softmax(normal(6, 4, seed=4), 1)
    results = []
    for compiled in (False, True):
        criterion = ISDALoss(4, 5, 0.5, 10, bound=bound, dtype=torch.float64)

        def loss_of(criterion=criterion):
            logits = torch.einsum("na...,ca->nc...", features, weight)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inputs == "autocast"):
                return criterion(logits, targets, features=features, weight=weight, strength=0.7)

        loss = (torch.compile(loss_of, backend="eager", fullgraph=True) if compiled else loss_of)()
        results.append((loss, *torch.autograd.grad(loss, weight), criterion.covariance.count))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_a_compiled_evaluation_is_plain_cross_entropy():
    model, (x, y) = network(), batch()
    criterion = ISDALoss.attach(model, 1.0, 4)
    model.eval()
    criterion.eval()
    compiled = torch.compile(lambda: criterion(model(x), y), backend="eager", fullgraph=True)
    assert torch.equal(compiled(), torch.nn.functional.cross_entropy(model(x), y))
    assert int(criterion.step) == 0


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_inductor(bound):
    losses, states, _ = train("full", bound, None, dtype=torch.float32, number=20)
    actual, compiled, graphs = train("full", bound, "inductor", dtype=torch.float32, number=20)
    torch.testing.assert_close(actual, losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled, states, rtol=1e-3, atol=1e-3)
    assert graphs[-1] == graphs[1]
