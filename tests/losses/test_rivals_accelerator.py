"""The rival losses off the CPU: what they give on the CPU, and the host waits for nothing."""

from __future__ import annotations

import pytest
import torch
from loss_oracles import normal
from rival_cases import CLASSES, DIM, MAKERS, ROWS, make_inputs

import pretend_accelerator

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")


def run(name, place, device=None):
    """The third training step: loss, gradients, state, and what the host waited for."""
    torch.manual_seed(3)
    criterion = MAKERS[name]()
    if device is not None:
        criterion.to("pretend")
    bias = place(normal(CLASSES, seed=3))
    for seed in range(3):
        features = place(normal(ROWS, DIM, seed=seed)).requires_grad_()
        weight = place(normal(CLASSES, DIM, seed=8)).requires_grad_()
        inputs = make_inputs()
        inputs = inputs._replace(
            logits=features @ weight.T + bias, features=features, weight=weight, targets=place(inputs.targets)
        )
        if device is not None:
            device.clear()
        torch.manual_seed(seed)
        criterion.zero_grad()
        loss = criterion(inputs.logits, inputs.targets, **inputs.given(name))
        loss.backward()
    waits = [] if device is None else list(device.waits)
    gradients = [features.grad, weight.grad, *(p.grad for p in criterion.parameters())]
    return [value.detach().cpu() for value in (loss, *gradients, *criterion.state_dict().values())], waits


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_equals_the_cpus_and_waits_for_nothing(name):
    expected, _ = run(name, lambda tensor: tensor)
    with pretend_accelerator.PretendAccelerator() as device:
        found, waits = run(name, pretend_accelerator.on_pretend, device)
    assert waits == []
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
