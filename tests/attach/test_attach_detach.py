"""criterion.detach() and attaching again: no hook of isda's outlives its use, and those of others stay."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attach_helpers import SmallNet, batch
from torch import nn

from isda import ISDALoss


def hooks_of(model: nn.Module) -> list[object]:
    """Every forward hook in the model."""
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


def test_a_detached_model_is_as_it_was(tmp_path: Path) -> None:
    model, (x, y) = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), batch()
    before = pickle.dumps(model)
    criterion = ISDALoss.attach(model, schedule="constant")
    criterion(model(x), y)
    criterion.detach()
    assert pickle.dumps(model) == before
    assert not model[2]._forward_hooks_with_kwargs
    assert torch.equal(torch.jit.script(model)(x), model(x))
    file = tmp_path / "model.pt"
    torch.save(model, file)
    script = (
        "import sys, torch; sys.modules['isda'] = None; "
        "print(type(torch.load(sys.argv[1], weights_only=False)).__name__)"
    )
    loaded = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "Sequential"


def test_a_detached_criterion_keeps_its_statistics_and_works_by_hand() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    criterion(logits, y)
    criterion.detach()
    criterion.detach()
    with pytest.raises(ValueError, match="features and weight must be given"):
        criterion(logits, y)
    criterion(logits, y, features=model.body(x), weight=model.fc.weight)
    assert int(criterion.covariance.count.sum()) == 2 * len(x)


def test_attaching_again_replaces_and_the_earlier_criterion_says_so() -> None:
    model, (x, y) = SmallNet(), batch()
    seen: list[nn.Module] = []
    model.fc.register_forward_hook(lambda module, args, output: seen.append(module))
    criteria = [ISDALoss.attach(model, schedule="constant") for _ in range(5)]
    assert len(hooks_of(model)) == 2
    loss = criteria[-1](model(x), y)
    assert loss.isfinite()
    with pytest.raises(ValueError, match="another criterion was attached to its classifier since"):
        criteria[0](model(x), y)
    criteria[0].detach()  # takes nothing away from its successor
    assert torch.equal(loss, ISDALoss.attach(model, schedule="constant")(model(x), y))
    assert len(seen) == 3


def test_an_earlier_criterion_does_not_detach_its_successor() -> None:
    model, (x, y) = SmallNet(), batch()
    first, second = ISDALoss.attach(model, schedule="constant"), ISDALoss.attach(model, schedule="constant")
    first.detach()
    assert second(model(x), y).isfinite()
    second.detach()
    assert not hooks_of(model)


def test_a_copied_pair_is_detached_by_itself() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    other_model, other = copy.deepcopy((model, criterion))
    other(other_model(x), y)
    other.detach()
    assert not hooks_of(other_model)
    assert len(hooks_of(model)) == 1
    assert criterion(model(x), y).isfinite()


def test_a_compiled_model_records_nothing_once_detached() -> None:
    torch._dynamo.reset()
    model, (x, y) = SmallNet(), batch()
    compiled = torch.compile(model, backend="eager")
    criterion = ISDALoss.attach(model, schedule="constant")
    criterion(compiled(x), y)
    (hook,) = criterion._recorder.hooks
    criterion.detach()
    assert torch.equal(compiled(x), model(x))
    assert not any(getattr(record, "features", None) is not None for record in vars(hook).values())
