"""Patches are the rows that a convolution multiplies: against F.unfold, and without ever being there at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isda.functional.patches import Patches

pytestmark = pytest.mark.any_device

LAYERS = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "unpadded": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "1x1 padded": {"kernel_size": 1, "padding": 1},
    "oblong": {"kernel_size": (1, 5), "padding": (0, 2), "stride": (2, 1)},
    "same": {"kernel_size": 4, "padding": "same"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_rows_times_weight_are_the_output(name: str) -> None:
    layer = nn.Conv2d(2, 3, **LAYERS[name], dtype=torch.float64)
    x = torch.randn(2, 2, 7, 8, dtype=torch.float64)
    wanted = layer(x).movedim(1, -1).flatten(0, -2) - layer.bias
    patches = Patches.seen_by(layer, x)
    weight = layer.weight.flatten(1)
    assert patches.shape == (len(wanted), weight.shape[1])
    assert patches.grid == layer(x).shape[2:]
    torch.testing.assert_close(patches.dense() @ weight.t(), wanted)
    torch.testing.assert_close(patches[3:11].dense() @ weight.t(), wanted[3:11])
    maps = torch.einsum("ca,nahw->nchw", weight, patches.maps())
    torch.testing.assert_close(maps + layer.bias.view(-1, 1, 1), layer(x))


def test_rows_are_those_of_unfold() -> None:
    layer, x = nn.Conv2d(2, 3, 3, stride=2, dilation=2, padding=1), torch.randn(2, 2, 9, 8)
    unfolded = F.unfold(x, 3, dilation=2, padding=1, stride=2).mT.flatten(0, 1)
    patches = Patches.seen_by(layer, x)
    assert torch.equal(patches.dense(), unfolded)
    chosen = torch.arange(len(unfolded)) % 3 == 0
    assert torch.equal(patches[chosen].dense(), unfolded[chosen])
    assert torch.equal(patches[chosen][1:3].dense(), unfolded[chosen][1:3])
    assert torch.equal(patches.to(torch.float64)[2:5].dense(), unfolded[2:5].double())
    assert torch.equal(patches[chosen].peaks(), unfolded[chosen].abs().amax(1, keepdim=True))


def test_peaks_pass_nan_on() -> None:
    layer, x = nn.Conv2d(2, 3, 3, padding=1), torch.randn(1, 2, 5, 5)
    x[0, 1, 0, 0] = torch.nan
    x[0, 0, 4, 4] = torch.inf
    bad = Patches.seen_by(layer, x).peaks().isfinite().logical_not().view(5, 5)
    wanted = torch.zeros(5, 5, dtype=torch.bool)
    wanted[:2, :2] = True
    wanted[3:, 3:] = True
    assert torch.equal(bad, wanted)
