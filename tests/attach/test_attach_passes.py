"""A forward pass counts once, and only its own logits find its features."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from attach_helpers import SmallNet, assert_same_state, batch, twin
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isda import ISDALoss

# -- a pass counts once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [True, False], ids=["", "without a graph"])
def test_mixup_as_two_calls_counts_the_pass_once(graph: bool) -> None:
    model, (x, a), share = SmallNet(), batch(), 0.3
    b = a.flip(0)
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=4)
    expected = twin(criterion)
    for step in range(3):
        with torch.set_grad_enabled(graph):
            logits = model(x)
        loss = share * criterion(logits, a) + (1 - share) * criterion(logits, b)
        first = expected(logits, a, features=model.body(x), weight=model.fc.weight)
        augmented = expected.augmented_logits(logits, b, weight=model.fc.weight, strength=step / 4)
        assert torch.equal(loss, share * first + (1 - share) * nn.functional.cross_entropy(augmented, b))
        assert_same_state(criterion, expected)
    assert criterion.step == 3
    assert int(criterion.covariance.count.sum()) == 3 * len(x)


def test_an_explicit_strength_is_used_by_later_calls_unless_they_bring_their_own() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=4)
    logits = model(x)
    first = criterion(logits, y, strength=0.5)
    assert torch.equal(criterion(logits, y), first)
    assert criterion(logits, y, strength=0.9) > first
    assert criterion.step == 0
    assert int(criterion.covariance.count.sum()) == len(x)


def test_a_call_that_failed_does_not_count() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=4)
    logits = model(x)
    with pytest.raises(ValueError, match="targets must lie in"):
        criterion(logits, y + 9)
    criterion(logits, y)
    assert criterion.step == 1
    assert int(criterion.covariance.count.sum()) == len(x)


def test_two_passes_over_one_batch_count_twice() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=4)
    criterion(model(x), y)
    criterion(model(x), y)
    assert criterion.step == 2
    assert int(criterion.covariance.count.sum()) == 2 * len(x)


# -- a record belongs to its pass --------------------------------------------------------------------------------------

OTHERS: dict[str, Callable[[SmallNet, Tensor], Tensor]] = {
    "an averaged copy": lambda model, x: copy.deepcopy(model)(x),
    "a clone": lambda model, x: model(x).clone(),
    "a clone of an earlier pass": lambda model, x: (model(x + 1).clone(), model(x))[0],
    "scaled": lambda model, x: 3 * model(x),
    "detached": lambda model, x: model(x).detach().clone(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_logits_without_a_graph_get_plain_cross_entropy(other: str) -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    with torch.no_grad():
        own = model(x)
        logits = OTHERS[other](model, x + 1)
        assert torch.equal(criterion(logits, y), nn.functional.cross_entropy(logits, y))
    assert not any(tensor.any() for tensor in criterion.state_dict().values())
    expected = twin(criterion)
    if other == "an averaged copy":  # the pass of the model itself still waits
        assert torch.equal(criterion(own, y), expected(own, y, features=model.body(x), weight=model.fc.weight))


def test_other_logits_with_a_graph_are_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    with torch.no_grad():
        model(x)
    for logits in (copy.deepcopy(model)(x), model(x).detach().requires_grad_()):
        with pytest.raises(ValueError, match="no features were recorded for these logits"):
            criterion(logits, y)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_a_checkpointed_copy_does_not_take_the_features_of_the_model() -> None:
    model, (x, y) = SmallNet(), batch()
    ema = copy.deepcopy(model)
    nn.init.normal_(ema.fc.weight)
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    with torch.no_grad():
        model(x)
    logits = checkpoint(ema, x.requires_grad_(), use_reentrant=True)
    with pytest.raises(ValueError, match=r"the logits are not W a \+ b of the classifier"):
        criterion(logits, y)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


@pytest.mark.parametrize("view", ["itself", "a view", "a slice"])
def test_views_of_the_output_without_a_graph_are_its_own(view: str) -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    with torch.no_grad():
        logits = model(x)
        if view == "a slice":
            with pytest.raises(ValueError, match="was given 12 samples, but logits has 7"):
                criterion(logits[5:], y[5:])
        else:
            criterion(logits if view == "itself" else logits.view(-1, 3), y)
            assert int(criterion.covariance.count.sum()) == len(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_pass_without_a_graph_finds_its_features(backend: str) -> None:
    torch._dynamo.reset()
    model, (x, y) = SmallNet(), batch()
    compiled = torch.compile(model, backend=backend)
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    with torch.no_grad():
        criterion(compiled(x), y)
    assert int(criterion.covariance.count.sum()) == len(x)
