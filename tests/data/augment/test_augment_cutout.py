from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isda.lab.data.augment import Cutout, Draws
from isda.lab.data.augment.crops import cutout

Images = Callable[..., Tensor]


def test_square_is_the_published_one_clipped_at_the_border(images_of: Images) -> None:
    images = images_of(3, 20, 24)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 20, (len(images),), generator=generator)
    columns = torch.randint(0, 24, (len(images),), generator=generator)
    ours = cutout(images, rows, columns, length=8)
    for image, result, row, column in zip(images, ours, rows.tolist(), columns.tolist(), strict=True):
        expected = image.clone()
        expected[:, max(row - 4, 0) : min(row + 4, 20), max(column - 4, 0) : min(column + 4, 24)] = 0
        assert torch.equal(result, expected)


def test_odd_length_hides_exactly_that_many_pixels() -> None:
    hidden = cutout(torch.ones(1, 1, 9, 9), torch.tensor([4]), torch.tensor([4]), length=5) == 0
    assert int(hidden.sum()) == 25
    assert bool(hidden[0, 0, 2:7, 2:7].all())


def test_hidden_area_and_centre_have_the_expected_distribution() -> None:
    count, size, length = 8000, 32, 16
    hidden = Cutout(length)(torch.ones(count, 1, size, size), Draws.for_samples(torch.arange(count), seed=0)) == 0
    side = [min(centre + 8, size) - max(centre - 8, 0) for centre in range(size)]
    expected_area = (sum(side) / size) ** 2
    area = hidden.flatten(1).sum(1).double()
    assert abs(float(area.mean()) - expected_area) < 2.5  # the standard error is below 0.6
    assert int(area.max()) == length * length
    # The pixel in the corner is hidden when both coordinates of the centre are 0 .. 8; one in the middle, 16 of 32.
    rate = hidden[:, 0].double().mean(0)
    assert abs(float(rate[0, 0]) - (9 / 32) ** 2) < 0.015
    assert abs(float(rate[16, 16]) - (16 / 32) ** 2) < 0.025
    assert area.unique().numel() > 30  # each sample has its own draw


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_fill_may_be_a_colour(images_of: Images, dtype: torch.dtype) -> None:
    images = images_of().to(dtype)
    draws = Draws.for_samples(torch.arange(len(images)), seed=0)
    result = Cutout(64, fill=(10, 20, 30))(images, draws)
    assert result.dtype == dtype
    assert result[:, 0, 16, 16].unique().tolist() == [10]
    assert result[:, 2, 16, 16].unique().tolist() == [30]


def test_wrong_arguments_are_named(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"length must be at least 1 pixel, got 0"):
        Cutout(0)
    with pytest.raises(ValueError, match=r"fill must be one value per channel \(3\), got 2"):
        Cutout(4, fill=(1, 2))(images_of(), Draws.for_samples(torch.arange(12), seed=0))
