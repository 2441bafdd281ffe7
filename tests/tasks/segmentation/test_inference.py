"""Probabilities at several scales, mirrored and by windows, against slow references that are written out."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

from isda.lab.networks import segmentation
from isda.lab.tasks.segmentation.evaluation import SCALES, predictor, probabilities, windows

CLASSES = 4


class Position(nn.Module):
    """A network whose logits depend on where in its input a pixel lies, so that no two windows agree."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, CLASSES, 3, padding=1).double()
        self.sizes = []

    def forward(self, images):
        self.sizes.append(tuple(images.shape))
        height, width = images.shape[2:]
        down = torch.linspace(0, 1, height, dtype=images.dtype)[:, None]
        right = torch.linspace(0, 3, width, dtype=images.dtype)
        return self.mix(images) + (down + right) * torch.arange(CLASSES, dtype=images.dtype)[:, None, None]


@pytest.fixture
def network():
    return Position()


@pytest.fixture
def image():
    return torch.randn(3, 23, 31, dtype=torch.float64)


def one_pass(network, image):
    with torch.no_grad():
        return torch.softmax(network(image[None]), dim=1)[0]


def resized(maps, size):
    return interpolate(maps[None], size=size, mode="bilinear", align_corners=True)[0]


def slow_windows(network, image, crop):
    """Every pixel's mean over all windows that hold it."""
    height, width = image.shape[1:]
    corners = [[], []]
    for side, (length, window) in enumerate(zip((height, width), crop, strict=True)):
        position = 0
        while position + window < length:
            corners[side].append(position)
            position += math.ceil(2 * window / 3)
        corners[side].append(max(0, length - window))
    made = {
        (top, left): one_pass(network, image[:, top : top + crop[0], left : left + crop[1]])
        for top in corners[0]
        for left in corners[1]
    }
    result = torch.empty(CLASSES, height, width, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            holding = [
                part[:, row - top, column - left]
                for (top, left), part in made.items()
                if 0 <= row - top < part.shape[1] and 0 <= column - left < part.shape[2]
            ]
            result[:, row, column] = torch.stack(holding).mean(0)
    return result


def test_one_scale_is_the_softmax_of_one_pass(network, image):
    torch.testing.assert_close(probabilities(network, image), one_pass(network, image))


def test_multi_scale_and_flip_equal_a_slow_reference(network, image):
    parts = []
    for scale in (0.75, 1.0, 1.25, 1.5):
        size = (round(23 * scale), round(31 * scale))
        for flip in (False, True):
            seen = resized(image, size)
            made = one_pass(network, seen.flip(2) if flip else seen)
            parts.append(resized(made.flip(2) if flip else made, (23, 31)))
    expected = torch.stack(parts).mean(0)
    torch.testing.assert_close(probabilities(network, image, scales=SCALES, flip=True), expected)
    torch.testing.assert_close(expected.sum(0), torch.ones(23, 31).double())
    straight = torch.stack(parts[::2]).mean(0)
    torch.testing.assert_close(probabilities(network, image, scales=SCALES), straight)
    assert not torch.allclose(straight, expected, atol=1e-3)


@pytest.mark.parametrize("crop", [(9, 12), (23, 8), (7, 31), (10, 40)])
def test_sliding_windows_equal_a_slow_reference(network, image, crop):
    torch.testing.assert_close(probabilities(network, image, crop=crop), slow_windows(network, image, crop))


def test_windows_scales_and_flip_compose(network, image):
    parts = []
    for scale in (1.0, 1.5):
        seen = resized(image, (round(23 * scale), round(31 * scale)))
        straight = slow_windows(network, seen, (12, 15))
        # Each window is mirrored in its own place.
        mirrored = slow_windows(lambda images: network(images.flip(3)).flip(3), seen, (12, 15))
        parts += [resized(straight, (23, 31)), resized(mirrored, (23, 31))]
    made = probabilities(network, image, scales=(1.0, 1.5), flip=True, crop=(12, 15))
    torch.testing.assert_close(made, torch.stack(parts).mean(0))


@pytest.mark.parametrize("crop", [(23, 31), (40, 31), (64, 64)])
def test_one_window_that_covers_the_image_is_one_pass(network, image, crop):
    torch.testing.assert_close(probabilities(network, image, crop=crop), one_pass(network, image))


def test_a_mirrored_image_gets_mirrored_probabilities_with_flip(network, image):
    made = probabilities(network, image, scales=SCALES, flip=True)
    torch.testing.assert_close(probabilities(network, image.flip(2), scales=SCALES, flip=True), made.flip(2))


def test_no_pass_is_larger_than_a_window(network, image):
    probabilities(network, image, scales=SCALES, flip=True, crop=(9, 12))
    assert {size[0] for size in network.sizes} == {1}
    assert max(size[2] for size in network.sizes) == 9
    assert max(size[3] for size in network.sizes) == 12


@pytest.mark.parametrize(("length", "crop"), [(100, 30), (31, 30), (30, 30), (7, 30), (1025, 769), (2, 1), (50, 2)])
def test_windows_cover_everything_and_overlap_by_a_third_at_least(length, crop):
    ranges = windows(length, crop)
    assert (ranges[0][0], ranges[-1][1]) == (0, length)
    for (start, end), (following, _) in pairwise(ranges):
        assert end - start == crop
        assert 0 < following - start <= math.ceil(2 * crop / 3)


def test_batches_are_predicted_image_by_image(network, image):
    other = torch.randn_like(image)
    with torch.no_grad():
        both = predictor(network, scales=(1.0, 1.25), flip=True, crop=(16, 16))(torch.stack([image, other]))
    for made, one in zip(both, (image, other), strict=True):
        torch.testing.assert_close(made, probabilities(network, one, scales=(1.0, 1.25), flip=True, crop=(16, 16)))


def test_a_network_in_training_predicts_in_evaluation_mode_and_goes_on_training():
    network = segmentation.create("pspnet-resnet-18", CLASSES, width=0.125)
    network.train()
    network.backbone.bn1.eval()
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    image = torch.randn(3, 20, 30)
    made = probabilities(network, image, flip=True)
    assert not made.requires_grad
    assert (network.training, network.head.training, network.backbone.bn1.training) == (True, True, False)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())
    torch.testing.assert_close(made, probabilities(network.eval(), image, flip=True))


def test_16_bit_logits_become_probabilities_in_32():
    class Half(nn.Module):
        def forward(self, images):
            return images.half()

    assert probabilities(Half(), torch.randn(3, 4, 4)).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": ()}, "scales must be numbers from 0.01 to 10, at least one, got "),
        ({"scales": (1.0, 0.0)}, "scales must be numbers from 0.01 to 10"),
        ({"scales": (2147483648.0,)}, "scales must be numbers from 0.01 to 10"),
        ({"scales": (math.nan,)}, "scales must be numbers from 0.01 to 10"),
        ({"crop": (0, 8)}, r"crop must be two lengths of at least 1, got \(0, 8\)"),
    ],
)
def test_bad_options_are_named(network, image, options, message):
    with pytest.raises(ValueError, match=message):
        probabilities(network, image, **options)


def test_a_batch_is_not_one_image(network, image):
    with pytest.raises(ValueError, match=r"image must have shape \(3, H, W\), got \(1, 3, 23, 31\)"):
        probabilities(network, image[None])


def test_windows_may_average_logits_as_the_authors_evaluation_does(network, image):
    """Windows of 9 pixels are 6 apart (overlap 1/3), the last ends the image; the sum of logits over their number."""
    total, counts = torch.zeros(CLASSES, 23, 31, dtype=torch.float64), torch.zeros(23, 31, dtype=torch.float64)
    with torch.no_grad():
        for top in (0, 6, 12, 14):
            for left in (0, 6, 12, 18, 22):
                total[:, top : top + 9, left : left + 9] += network(image[None, :, top : top + 9, left : left + 9])[0]
                counts[top : top + 9, left : left + 9] += 1
        made = predictor(network, crop=(9, 9), logits=True)(image[None])[0]
    torch.testing.assert_close(made, total / counts)
    assert not torch.allclose(made.softmax(0), probabilities(network, image, crop=(9, 9)))
