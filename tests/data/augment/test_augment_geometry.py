"""Shear, translation and rotation against torchvision's affine and rotate, image by image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor

from isda.lab.data.augment import OPERATION_NAMES, apply_operations

Images = Callable[..., Tensor]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 33), (3, 24, 20)]

SLOPES = sorted({sign * value for value in torch.linspace(0, 0.3, 10).tolist() for sign in (1, -1)} | {0.99, -0.45})
PIXELS = [0.0, 0.9, -0.9, 1.0, 4.35, -4.35, 14.5, -14.5, 40.0]
DEGREES = [0.0, 1.0, -1.0, 3.3333333, 9.0, -9.0, 20.0, 30.0, -30.0, 45.0, 90.0, -90.0, 135.0, 180.0]
CASES = {"ShearX": SLOPES, "ShearY": SLOPES, "TranslateX": PIXELS, "TranslateY": PIXELS, "Rotate": DEGREES}


def torchvision_result(image: Tensor, name: str, magnitude: float, fill: int | Sequence[float] | None) -> Tensor:
    """What torchvision's RandAugment calls, written with its public functions."""
    if name == "Rotate":
        return tv.rotate(image, magnitude, fill=fill)
    degrees = math.degrees(math.atan(magnitude))
    shear = {"ShearX": [degrees, 0.0], "ShearY": [0.0, degrees]}.get(name, [0.0, 0.0])
    translate = {"TranslateX": [int(magnitude), 0], "TranslateY": [0, int(magnitude)]}.get(name, [0, 0])
    centre = [0, 0] if name.startswith("Shear") else None
    return tv.affine(image, angle=0.0, translate=translate, scale=1.0, shear=shear, fill=fill, center=centre)


def tie_mask(name: str, magnitude: float, height: int, width: int) -> Tensor:
    """Pixels whose exact source lies (nearly) midway between two pixels: rounding noise decides there."""
    y = torch.arange(height, dtype=torch.float64)[:, None].expand(height, width)
    x = torch.arange(width, dtype=torch.float64).expand(height, width)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    if name == "ShearX":
        source = [x + magnitude * (y + 0.5), y]
    elif name == "ShearY":
        source = [x, y + magnitude * (x + 0.5)]
    elif name == "Rotate":
        cosine, sine = math.cos(math.radians(magnitude)), math.sin(math.radians(magnitude))
        source = [
            cosine * (x - middle_x) - sine * (y - middle_y) + middle_x,
            sine * (x - middle_x) + cosine * (y - middle_y) + middle_y,
        ]
    else:
        return torch.zeros(height, width, dtype=torch.bool)
    return torch.stack([((value % 1) - 0.5).abs() < 1e-4 for value in source]).any(0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("coloured", [False, True])
def test_result_equals_torchvision_pixel_for_pixel(
    images_of: Images, name: str, shape: tuple[int, int, int], coloured: bool
) -> None:
    ours_fill, theirs_fill = (0, None)
    if coloured:
        ours_fill = [128, 3, 250][: shape[0]]
        theirs_fill = [float(value) for value in ours_fill]
    images = images_of(*shape)
    magnitudes = CASES[name]
    # Neighbouring samples of one batch have different magnitudes.
    batch = images.repeat_interleave(len(magnitudes), 0)
    magnitude = torch.tensor(magnitudes, dtype=torch.float64).repeat(len(images))
    ours = apply_operations(batch, torch.full((len(batch),), OPERATION_NAMES.index(name)), magnitude, ours_fill)
    ties = 0
    for image, result, value in zip(batch, ours, magnitude.tolist(), strict=True):
        decided = ~tie_mask(name, value, *shape[1:])
        theirs = torchvision_result(image, name, value, theirs_fill)
        assert torch.equal(result[:, decided], theirs[:, decided]), f"{name} {value}"
        ties += int((~decided).sum())
    assert ties < 0.04 * batch[:, 0].numel()  # slopes k / 30 meet some rows exactly midway


def test_fill_of_one_value_serves_all_channels(images_of: Images) -> None:
    images = images_of()
    operation = torch.full((len(images),), OPERATION_NAMES.index("TranslateX"))
    magnitude = torch.full((len(images),), 5.0, dtype=torch.float64)
    filled = apply_operations(images, operation, magnitude, fill=99)
    assert filled[..., :5].unique().tolist() == [99]
    assert torch.equal(filled[..., 5:], images[..., :-5])
    assert torch.equal(apply_operations(images, operation, magnitude, fill=[99]), filled)
