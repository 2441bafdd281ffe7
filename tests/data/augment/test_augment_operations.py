from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isda.lab.data.augment import OPERATION_NAMES, apply_operations
from isda.lab.data.augment.operations import operation_index

Images = Callable[..., Tensor]
Reference = Callable[[Tensor, str, float], Tensor]

MAGNITUDES = {
    "ShearX": 0.21,
    "ShearY": -0.17,
    "TranslateX": -7.6,
    "TranslateY": 3.2,
    "Rotate": 17.3,
    "Brightness": -0.37,
    "Color": 0.63,
    "Contrast": -0.54,
    "Sharpness": 0.81,
    "Posterize": 4.0,
    "Solarize": 0.43,
}


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_of_a_mixed_batch_gets_its_own_operation(
    images_of: Images, torchvision_operation: Reference, channels: int
) -> None:
    images = images_of(channels)
    batch = images.repeat(len(OPERATION_NAMES), 1, 1, 1)
    operation = torch.arange(len(batch)) % len(OPERATION_NAMES)
    magnitude = torch.tensor([MAGNITUDES.get(OPERATION_NAMES[index], 0.0) for index in operation.tolist()])
    before = batch.clone()
    ours = apply_operations(batch, operation, magnitude.double())
    assert torch.equal(batch, before)
    names = [OPERATION_NAMES[index] for index in operation.tolist()]
    for image, result, name, value in zip(batch, ours, names, magnitude.tolist(), strict=True):
        difference = (result.int() - torchvision_operation(image, name, value).int()).abs()
        assert int(difference.max()) <= 1, name
        assert float((difference > 0).double().mean()) < 1e-3, name


def test_identity_alone_and_an_empty_batch_change_nothing(images_of: Images) -> None:
    images = images_of()
    identity = torch.full((len(images),), operation_index("Identity"))
    assert torch.equal(apply_operations(images, identity, torch.zeros(len(images))), images)
    nothing = images[:0]
    assert apply_operations(nothing, identity[:0], torch.zeros(0)).shape == nothing.shape


def test_wrong_arguments_are_named(images_of: Images) -> None:
    zeros = torch.zeros(12, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"name must be one of .* got 'Sheer'; did you mean 'Shear[XY]'\?"):
        operation_index("Sheer")
    with pytest.raises(ValueError, match=r"images must be torch.uint8, got torch.float32"):
        apply_operations(images_of().float(), zeros, zeros.double())
    with pytest.raises(ValueError, match=r"images must have 1 or 3 channels, got 2"):
        apply_operations(images_of(2), zeros, zeros.double())
    with pytest.raises(ValueError, match=r"fill must be one value or one per channel \(3\), got 2"):
        apply_operations(images_of(), zeros, zeros.double(), fill=[1, 2])
