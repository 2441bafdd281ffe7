from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor
from torchvision.transforms import v2

from isda.lab.data.augment import Draws, RandomResizedCrop, ResizeCenterCrop, imagenet_evaluation, imagenet_training

Images = Callable[..., Tensor]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZES = [(40, 60), (60, 40), (33, 33), (90, 31), (24, 24)]


def draws(count: int, seed: int = 0) -> Draws:
    return Draws.for_samples(torch.arange(count), seed=seed)


def varied_images(images_of: Images) -> list[Tensor]:
    return [images_of(3, *size)[row] for row, size in enumerate(SIZES)]


def test_training_crop_equals_torchvision_for_the_same_windows(images_of: Images) -> None:
    images = varied_images(images_of)
    transform = RandomResizedCrop(28)
    ours = transform(images, draws(len(images)))
    assert ours.dtype == torch.uint8
    for image, result, window in zip(images, ours, transform.draw(draws(len(images)), SIZES), strict=True):
        assert torch.equal(result, tv.resized_crop(image, *window, [28, 28], antialias=True))


def test_windows_lie_inside_with_area_and_shape_in_range() -> None:
    height, width = 300, 400
    windows = torch.tensor(RandomResizedCrop(224).draw(draws(4000), [(height, width)] * 4000)).double()
    top, left, window_height, window_width = windows.T
    assert float(top.min()) >= 0
    assert float(left.min()) >= 0
    assert float((top + window_height).max()) <= height
    assert float((left + window_width).max()) <= width
    area = window_height * window_width / (height * width)
    assert 0.078 < float(area.min()) < 0.09
    assert float(area.max()) <= 1
    ratio = window_width / window_height
    assert 0.74 < float(ratio.min()) < 0.76
    assert 1.32 < float(ratio.max()) < 1.35
    assert windows.unique(dim=0).shape[0] > 3900


def test_windows_reach_every_position_equally_often() -> None:
    transform = RandomResizedCrop(4, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    windows = torch.tensor(transform.draw(draws(3600), [(4, 4)] * 3600))
    assert windows[:, 2:].unique().tolist() == [2]
    counts = torch.bincount(windows[:, 0] * 3 + windows[:, 1]).double()
    assert len(counts) == 9
    assert float(((counts - 400) ** 2 / 400).sum()) < 8 + 5 * 16**0.5


def test_windows_have_torchvisions_distribution() -> None:
    count, size = 3000, (90, 130)
    ours = torch.tensor(RandomResizedCrop(32).draw(draws(count), [size] * count)).double()
    theirs_transform = v2.RandomResizedCrop(32)
    blank = torch.zeros(3, *size, dtype=torch.uint8)
    torch.manual_seed(0)
    parameters = [theirs_transform.make_params([blank]) for _ in range(count)]
    theirs = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in parameters]).double()
    error = ((ours.var(0) + theirs.var(0)) / count).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all())
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0, rtol=0.08)


@pytest.mark.parametrize("size", [(10, 400), (400, 10), (64, 65)])
def test_when_no_attempt_fits_the_window_is_central_as_in_torchvision(size: tuple[int, int]) -> None:
    # More than the image's whole area never fits.
    windows = RandomResizedCrop(32, scale=(1.5, 2.0)).draw(draws(3), [size] * 3)
    theirs = v2.RandomResizedCrop(32, scale=(1.5, 2.0)).make_params([torch.zeros(3, *size)])
    assert set(windows) == {(theirs["top"], theirs["left"], theirs["height"], theirs["width"])}


def test_evaluation_equals_torchvision_image_by_image(images_of: Images) -> None:
    images = varied_images(images_of)
    theirs = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])
    ours = ResizeCenterCrop(32, 28)(images)
    for image, result in zip(images, ours, strict=True):
        assert torch.equal(result, theirs(image))


def test_full_size_pipelines_give_normalised_224_pixel_batches(images_of: Images) -> None:
    images = varied_images(images_of)[:2]
    evaluated = imagenet_evaluation(MEAN, STD)(images)
    theirs = v2.Compose(
        [v2.Resize(256), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    torch.testing.assert_close(evaluated, torch.stack([theirs(image) for image in images]), atol=2e-6, rtol=0)
    trained = imagenet_training(MEAN, STD)(images, draws(2))
    assert trained.shape == (2, 3, 224, 224)
    assert trained.dtype == torch.float32


def test_a_batch_tensor_serves_as_a_list_of_images(images_of: Images) -> None:
    images = images_of(3, 40, 30)
    transform = RandomResizedCrop(16)
    assert torch.equal(transform(images, draws(12)), transform(list(images), draws(12)))


def test_wrong_arguments_are_named(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"scale must be \(low, high\) with 0 < low <= high, got \(0, 1\)"):
        RandomResizedCrop(32, scale=(0, 1))
    with pytest.raises(ValueError, match=r"size must be in 1\.\.256, not more than resize, got 300"):
        ResizeCenterCrop(256, 300)
    with pytest.raises(ValueError, match=r"images must hold at least one image, got none"):
        ResizeCenterCrop()([])
    with pytest.raises(ValueError, match=r"images\[1\] must be a \(C, H, W\) image, got shape \(32, 32\)"):
        ResizeCenterCrop()([images_of()[0], images_of()[0, 0]])
    with pytest.raises(ValueError, match=r"images\[1\] must have 3 channels as the first has, got 1"):
        ResizeCenterCrop()([images_of()[0], images_of(1)[0]])
