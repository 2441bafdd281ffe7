"""Off the CPU nothing that attach follows makes the host wait after the first call: on the pretend accelerator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pretend_accelerator
from isda import ISDALoss

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")

MASK = torch.arange(20).view(4, 5) % 3 != 1


class Heads(nn.Module):
    """Two classifiers that are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.low_classifier, self.high_classifier = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.low_classifier(x) + self.high_classifier(x.tanh())) / 2


def pixels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(6, 6, 1), nn.Conv2d(6, 3, 3, padding=1))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Tensor, Callable], Tensor]]] = {
    "picked by an index": (
        lambda: nn.Sequential(nn.Linear(6, 3)),
        (4, 5, 6),
        lambda z, place: z[place(torch.arange(4)), place(torch.tensor([1, 4, 0, 2]))],
    ),
    "picked by a mask": (lambda: nn.Sequential(nn.Linear(6, 3)), (4, 5, 6), lambda z, place: z[place(MASK)]),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 3)), (4, 5, 6), lambda z, place: z),
    "scaled": (lambda: nn.Sequential(nn.Linear(6, 3)), (4, 6), lambda z, place: 3 * z / 2),
    "side by side": (Heads, (4, 6), lambda z, place: z),
    "patches": (pixels, (2, 6, 4, 5), lambda z, place: z),
}


def losses(name: str, accelerator: pretend_accelerator.PretendAccelerator | None) -> tuple[list[float], int]:
    """The losses of three calls, and how often the criterion made the host wait in the last two."""
    torch.manual_seed(0)
    make, shape, after = CASES[name]
    place = (lambda tensor: tensor) if accelerator is None else pretend_accelerator.on_pretend
    model, x = make(), place(torch.randn(shape))
    if accelerator is not None:
        model.to("pretend")
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    found, waits = [], 0
    for step in range(3):
        logits = after(model(x), place)
        spatial = logits.shape[2:] if name == "patches" else logits.shape[1:-1]
        targets = place(torch.arange(len(logits) * spatial.numel()).view(len(logits), *spatial) % 3)
        before = 0 if accelerator is None else len(accelerator.waits)
        loss = criterion(logits, targets)
        if step and accelerator is not None:
            waits += len(accelerator.waits) - before
        found.append(loss.detach())
    return [float(loss) for loss in found], waits


@pytest.mark.parametrize("name", CASES)
def test_the_same_losses_without_waiting(name: str) -> None:
    expected, _ = losses(name, None)
    with pretend_accelerator.PretendAccelerator() as accelerator:
        got, waits = losses(name, accelerator)
    assert got == pytest.approx(expected, rel=1e-5)
    assert waits == 0
