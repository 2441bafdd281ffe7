from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torch import Tensor

from isda.lab.data.augment import Draws, HorizontalFlip, RandomCrop, RandomTranslation
from isda.lab.data.augment.crops import crop, pad

Images = Callable[..., Tensor]


def draws(count: int, seed: int = 0) -> Draws:
    return Draws.for_samples(torch.arange(count), seed=seed)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 9, 14)])
def test_pad_and_crop_equal_torchvision_image_by_image(
    images_of: Images, shape: tuple[int, int, int], dtype: torch.dtype, mode: str
) -> None:
    images = images_of(*shape).to(dtype)
    height, width = shape[1:]
    generator = torch.Generator().manual_seed(0)
    top, left = torch.randint(0, 9, (2, len(images)), generator=generator)
    ours = crop(pad(images, 4, mode), top, left, height, width)
    for row, image in enumerate(images):
        padded = tv.pad(image, [4], padding_mode=mode)
        assert torch.equal(ours[row], tv.crop(padded, int(top[row]), int(left[row]), height, width))


def position_images(count: int, size: int) -> Tensor:
    """Every pixel holds its own position (row * size + column), plus one so that padding is 0."""
    return (torch.arange(size * size).view(1, 1, size, size) + 1).expand(count, 1, size, size)


def test_crop_offsets_are_uniform_over_nine_by_nine() -> None:
    count, size = 16200, 9
    cropped = RandomCrop(4)(position_images(count, size), draws(count))
    centre = cropped[:, 0, 4, 4] - 1
    counts = torch.bincount(centre, minlength=81).double()
    assert len(counts) == 81
    assert float(counts.min()) > 0
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    assert abs(chi_square - 80) < 5 * (2 * 80) ** 0.5


def test_translation_moves_by_at_most_two_pixels_and_reflects() -> None:
    count, size = 2000, 7
    moved = RandomTranslation(2)(position_images(count, size), draws(count))
    centre = moved[:, 0, 3, 3] - 1
    rows, columns = centre // size - 3, centre % size - 3
    offsets = set(zip(rows.tolist(), columns.tolist(), strict=True))
    assert offsets == {(row, column) for row in range(-2, 3) for column in range(-2, 3)}
    assert int(moved.min()) >= 1  # no padding value comes in
    upper_left = int(((rows == -2) & (columns == -2)).nonzero()[0, 0])
    assert moved[upper_left, 0, 0, :4].tolist() == [2 * size + 3, 2 * size + 2, 2 * size + 1, 2 * size + 2]


def test_flip_mirrors_half_of_the_images_and_leaves_the_others(images_of: Images) -> None:
    images = images_of()[:1].repeat(4000, 1, 1, 1)[:, :, :4, :4].contiguous()
    flipped = HorizontalFlip()(images, draws(4000))
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    unchanged = (flipped == images).flatten(1).all(1)
    assert bool((mirrored ^ unchanged).all())
    assert abs(float(mirrored.double().mean()) - 0.5) < 0.03


def test_transforms_leave_their_input_as_it_was(images_of: Images) -> None:
    images = images_of()
    before = images.clone()
    for transform in (RandomCrop(4), RandomTranslation(2), HorizontalFlip()):
        transform(images, draws(len(images)))
        assert torch.equal(images, before)


@pytest.mark.parametrize("transform", [RandomCrop(4), RandomCrop(4, "reflect"), HorizontalFlip()])
def test_empty_and_non_contiguous_batches_work(images_of: Images, transform: RandomCrop | HorizontalFlip) -> None:
    images = images_of(3, 8, 12)
    assert transform(images[:0], draws(0)).shape == (0, 3, 8, 12)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(transform(channels_last, draws(len(images))), transform(images, draws(len(images))))


def test_wrong_arguments_are_named(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"padding_mode must be one of .* got 'reflekt'; did you mean 'reflect'\?"):
        RandomCrop(4, "reflekt")
    with pytest.raises(ValueError, match=r"padding must be 0 or more pixels, got -1"):
        RandomCrop(-1)
    with pytest.raises(ValueError, match=r"padding must be less than the image's size 4x9 to reflect, got 4"):
        RandomCrop(4, "reflect")(images_of(3, 4, 9), draws(12))
    with pytest.raises(ValueError, match=r"images must be an \(N, C, H, W\) tensor, got one of shape \(3, 32, 32\)"):
        RandomCrop(4)(images_of()[0], draws(3))
    with pytest.raises(ValueError, match=r"draws must have one key for each of 12 images, got 3 keys"):
        RandomCrop(4)(images_of(), draws(3))
    with pytest.raises(ValueError, match=r"draws must be Draws .* got None"):
        HorizontalFlip()(images_of())
