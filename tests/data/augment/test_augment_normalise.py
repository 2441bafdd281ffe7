from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from isda.lab.data.augment import Normalize

Images = Callable[..., Tensor]
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]


def test_uint8_images_equal_torchvision(images_of: Images) -> None:
    images = images_of()
    theirs = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    ours = Normalize(MEAN, STD)(images)
    assert ours.dtype == torch.float32
    for image, result in zip(images, ours, strict=True):
        torch.testing.assert_close(result, theirs(image), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_float_images_are_taken_as_zero_to_one_and_left_alone(images_of: Images, dtype: torch.dtype) -> None:
    images = (images_of().float() / 255).to(dtype)
    before = images.clone()
    ours = Normalize(MEAN, STD)(images)
    assert ours.dtype == torch.float32
    assert torch.equal(images, before)
    torch.testing.assert_close(ours, v2.functional.normalize(images.float(), MEAN, STD), atol=1e-6, rtol=0)


def test_wrong_arguments_are_named(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"std must have 3 values, as many as mean, got 1"):
        Normalize(MEAN, [1.0])
    with pytest.raises(ValueError, match=r"std must be positive, got \[0.0\]"):
        Normalize([0.5], [0.0])
    with pytest.raises(ValueError, match=r"images must have 1 channels, one for each mean, got 3"):
        Normalize([0.5], [0.5])(images_of())
    with pytest.raises(ValueError, match=r"images must be uint8 or floating point, got torch.int64"):
        Normalize(MEAN, STD)(images_of().long())
