"""Channel statistics and per-image normalisation."""

import pytest
import torch

from isda.lab.data import ImageFiles, channel_statistics, normalise, normalise_per_image
from isda.lab.data.augment import Normalize


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (40, 3, 7, 5), dtype=torch.uint8, generator=generator)


def test_channel_statistics_equal_mean_and_standard_deviation_of_all_pixels(images):
    pixels = images.double().transpose(0, 1).flatten(1) / 255
    mean, std = channel_statistics(images)
    assert mean == pytest.approx(pixels.mean(1).tolist(), abs=1e-12)
    assert std == pytest.approx(pixels.std(1, correction=0).tolist(), abs=1e-12)


def test_normalising_with_them_gives_zero_mean_and_unit_variance(images):
    normalised = Normalize(*channel_statistics(images))(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1, correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_a_constant_channel_can_still_be_divided_by(images):
    images[:, 1] = 51
    mean, std = channel_statistics(images)
    assert mean[1] == pytest.approx(0.2)
    assert std[1] == 1.0


def test_images_on_disk_have_the_same_statistics_as_in_memory(tmp_path, write_images):
    write_images(tmp_path, 6)
    files = ImageFiles(sorted(tmp_path.glob("*.png")))
    assert channel_statistics(files) == channel_statistics(torch.stack([files[i] for i in range(6)]))


def test_of_many_images_on_disk_an_even_sample_is_decoded(tmp_path, write_images, monkeypatch):
    write_images(tmp_path, 9)
    files = ImageFiles(sorted(tmp_path.glob("*.png")))
    monkeypatch.setattr(normalise, "DECODED_FOR_STATISTICS", 3)
    assert channel_statistics(files) == channel_statistics(files[::3])


def test_statistics_need_bytes(images):
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(N, C, H, W\), got torch.float32"):
        channel_statistics(images.float())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_each_image_gets_zero_mean_and_unit_standard_deviation(images, dtype):
    given = images if dtype == torch.uint8 else (images.double() / 255).to(dtype)
    normalised = normalise_per_image(given)
    assert normalised.dtype == (torch.float32 if dtype == torch.uint8 else dtype)
    flat = normalised.double().flatten(1)
    tolerance = 1e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(flat.mean(1), torch.zeros(40).double(), atol=tolerance, rtol=0)
    torch.testing.assert_close(flat.std(1, correction=0), torch.ones(40).double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1.0])
def test_constant_images_become_zero(value):
    assert normalise_per_image(torch.full((2, 3, 224, 224), value)).abs().max() == 0


def test_one_pixel_that_differs_by_one_is_not_constant():
    image = torch.full((1, 3, 224, 224), 100, dtype=torch.uint8)
    image[0, 1, 5, 5] += 1
    normalised = normalise_per_image(image)
    assert normalised.std(correction=0).item() == pytest.approx(1, abs=1e-2)
    assert normalised.argmax() == 224 * 224 + 5 * 224 + 5


def test_images_of_integers_other_than_bytes_are_refused(images):
    with pytest.raises(ValueError, match=r"images must be uint8 or floating point in 0\.\.1, got torch.int64"):
        normalise_per_image(images.long())
