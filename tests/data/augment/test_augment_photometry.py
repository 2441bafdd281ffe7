"""Colour and grey-level operations against torchvision's functions, image by image."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor

from isda.lab.data.augment import operations as photometry

Images = Callable[..., Tensor]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 33), (3, 2, 9)]

FACTORS = sorted(
    {1 + sign * value for bins in (10, 31) for value in torch.linspace(0, 0.9, bins).tolist() for sign in (1, -1)}
    | {0.0, 2.5}
)
THRESHOLDS = sorted({255 * value for bins in (10, 31) for value in torch.linspace(1, 0, bins).tolist()} | {128.0, 0.5})
CASES = {
    "brightness": (tv.adjust_brightness, FACTORS),
    "color": (tv.adjust_saturation, FACTORS),
    "contrast": (tv.adjust_contrast, FACTORS),
    "sharpness": (tv.adjust_sharpness, FACTORS),
    "solarize": (tv.solarize, THRESHOLDS),
    "posterize": (tv.posterize, list(range(9))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_operation_with_a_parameter_equals_torchvision(
    images_of: Images, name: str, shape: tuple[int, int, int]
) -> None:
    theirs, parameters = CASES[name]
    images = images_of(*shape)
    batch = images.repeat_interleave(len(parameters), 0)
    parameter = torch.tensor(parameters, dtype=torch.float64).repeat(len(images))
    before = batch.clone()
    ours = getattr(photometry, name)(batch, parameter)
    assert ours.dtype == torch.uint8
    assert torch.equal(batch, before)
    for value in parameters:
        same = parameter == value
        difference = ours[same].int() - torch.stack([theirs(image, value) for image in images]).int()
        assert int(difference.abs().max()) <= (0 if name in ("solarize", "posterize") else 1), f"{name} {value}"
        # One grey level is what float32 rounding can do before the cut to uint8; it must be rare.
        assert float((difference != 0).double().mean()) < 1e-3, f"{name} {value}"


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
@pytest.mark.parametrize("shape", SHAPES)
def test_operation_without_a_parameter_equals_torchvision(
    images_of: Images, name: str, shape: tuple[int, int, int]
) -> None:
    images = images_of(*shape)
    ours = getattr(photometry, name)(images)
    for image, result in zip(images, ours, strict=True):
        assert torch.equal(result, getattr(tv, name)(image))


def test_fractions_of_a_posterize_bit_are_dropped(images_of: Images) -> None:
    images = images_of()
    fractional = photometry.posterize(images, torch.full((len(images),), 4.9, dtype=torch.float64))
    assert torch.equal(fractional, tv.posterize(images, 4))
