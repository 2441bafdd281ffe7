"""A step as a CUDA graph captures it: the same kernels and addresses in a hundred steps, and no value read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isda import ISDALoss
from isda._utils.devices import recording
from pretend_accelerator import AVAILABLE, PretendAccelerator, on_pretend

C, A, N = 4, 5, 12


@pytest.mark.skipif(not AVAILABLE, reason="this torch has no Python backend")
@pytest.mark.parametrize("bound", ["jensen", pytest.param("tilted", marks=pytest.mark.slow)])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "shared", "within", "shrunk", "identity"])
def test_a_hundred_steps_can_be_captured(covariance: str, bound: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(C, A, generator=generator)
    batches = [
        (torch.randn(N, A, generator=generator), torch.randint(C, (N,), generator=generator)) for _ in range(100)
    ]
    settings = {"lambda_0": 1.0, "total_steps": 100, "covariance": covariance, "bound": bound}
    plain = ISDALoss(C, A, **settings)
    with PretendAccelerator() as accelerator:
        criterion = ISDALoss(C, A, device="pretend", **settings)
        there = on_pretend(weight.requires_grad_())
        launches, addresses = set(), set()
        for x, y in batches:
            features, targets = on_pretend(x), on_pretend(y)
            accelerator.clear()
            with recording():
                loss = criterion(features @ there.t(), targets, features=features, weight=there)
                loss.backward()
            assert accelerator.waits == []
            launches.add(tuple(launch.operation for launch in accelerator.launches[:-1]))
            addresses.add(tuple(buffer.data_ptr() for buffer in criterion.buffers()))
            # The last launch adds to the gradient, but for the first step.
        loss, step = loss.cpu(), criterion.step
        state = {name: buffer.cpu() for name, buffer in criterion.state_dict().items()}
    assert len(addresses) == 1
    assert len(launches) <= 2
    assert step == 100
    for x, y in batches:
        expected = plain(x @ weight.t(), y, features=x, weight=weight)
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)


def test_outside_a_graph_nothing_is_recorded() -> None:
    criterion, head, x = ISDALoss(C, A, schedule="constant"), nn.Linear(A, C), torch.randn(N, A)
    criterion(head(x), torch.arange(N) % C, features=x, weight=head.weight)
    assert not criterion.covariance._recorded
    assert int(criterion.covariance.row_counts.sum()) == 0
