"""Random scale, mirror and crop of images with labels: the same as resizing, padding and cutting in turn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from isda.lab.data.augment import Draws, ScaleMirrorCrop
from isda.lab.data.augment.dense import resized_window

FILL = (0.25, 0.5, 0.75)


def sample(height=23, width=31, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)
    return image, torch.randint(0, 5, (height, width), dtype=torch.uint8, generator=generator)


def one_after_the_other(image, labels, scaled, start, size, mirrored):
    """Resize everything, pad at the bottom and on the right, cut out, mirror."""
    pixels = F.interpolate(image[None].double() / 255, scaled, mode="bilinear", align_corners=False)[0]
    classes = F.interpolate(labels[None, None].double(), scaled, mode="nearest-exact")[0, 0].long()
    beyond = torch.tensor(FILL, dtype=torch.float64).view(3, 1, 1)
    height, width = scaled[0] + size[0], scaled[1] + size[1]
    large, marks = beyond.repeat(1, height, width), torch.full((height, width), 255)
    large[:, : scaled[0], : scaled[1]], marks[: scaled[0], : scaled[1]] = pixels, classes
    rows, columns = (slice(first, first + length) for first, length in zip(start, size, strict=True))
    cut = large[:, rows, columns], marks[rows, columns]
    return (cut[0].flip(2), cut[1].flip(1)) if mirrored else cut


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("scaled", "start", "size"),
    [
        ((23, 31), (0, 0), (23, 31)),  # as it is
        ((46, 62), (11, 17), (20, 25)),  # enlarged, within
        ((46, 62), (40, 0), (20, 62)),  # beyond the bottom
        ((12, 16), (0, 0), (20, 25)),  # reduced, padded
        ((17, 41), (3, 5), (14, 36)),  # of another shape
        ((1, 1), (0, 0), (2, 3)),
    ],
)
def test_a_window_is_resizing_padding_and_cutting_one_after_the_other(scaled, start, size, mirrored):
    image, labels = sample()
    pixels, classes = resized_window(image, labels, scaled, start, size, mirrored=mirrored, fill=FILL, ignored=255)
    expected, marks = one_after_the_other(image, labels, scaled, start, size, mirrored)
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels.double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(classes, marks)


def test_a_sample_does_not_depend_on_its_batch_and_draws_anew_each_epoch():
    augment = ScaleMirrorCrop((16, 20), fill=FILL)
    samples = [sample(seed=i, height=18 + i) for i in range(5)]
    images, labels = augment(samples, Draws.for_samples(torch.arange(5), seed=1, epoch=2))
    assert (images.shape, labels.shape) == ((5, 3, 16, 20), (5, 16, 20))
    alone = augment(samples[3:4], Draws.for_samples(torch.tensor([3]), seed=1, epoch=2))
    assert torch.equal(alone[0][0], images[3])
    assert torch.equal(alone[1][0], labels[3])
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}):
        assert not torch.equal(augment(samples, Draws.for_samples(torch.arange(5), **other))[0], images)


def test_scales_positions_and_mirrors_take_every_value_within_their_range():
    """Each pixel's label is its column: the distance of neighbours tells the scale, the sign of it the mirror."""
    width = 200
    labels = torch.arange(width, dtype=torch.uint8).repeat(20, 1)
    image = torch.zeros(3, 20, width, dtype=torch.uint8)
    augment = ScaleMirrorCrop((4, 50), (0.5, 2.0))
    _, marks = augment([(image, labels)] * 400, Draws.for_samples(torch.arange(400), seed=0))
    steps = (marks[:, 0, -1] - marks[:, 0, 0]) / 49
    scales = 1 / steps.abs()
    assert 0.5 <= scales.min() + 0.02 < 0.6
    assert 1.9 < scales.max() < 2.1
    assert 160 < int((steps < 0).sum()) < 240
    first = torch.minimum(marks[:, 0, 0], marks[:, 0, -1])[(scales > 0.95) & (scales < 1.05)]
    assert first.min() < 30
    assert first.max() > 120
    never, _ = ScaleMirrorCrop((4, 50), mirror=False)([(image, labels)] * 9, Draws.for_samples(torch.arange(9), seed=0))
    assert never.shape == (9, 3, 4, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (0, 5)}, r"size must be \(height, width\) of at least 1 pixel, got \(0, 5\)"),
        ({"size": (5, 5), "scales": (2.0, 1.0)}, "scales must be .* smallest <= largest, got"),
        ({"size": (5, 5), "scales": (0.0, 1.0)}, "scales must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleMirrorCrop(**arguments)


def test_draws_are_needed_for_each_sample():
    with pytest.raises(ValueError, match=r"draws must have one key for each of 2 images .* got 1 keys"):
        ScaleMirrorCrop((4, 4))([sample(), sample()], Draws.for_samples(torch.arange(1), seed=0))
