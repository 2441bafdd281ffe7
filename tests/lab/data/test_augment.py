"""Draws, crops, flips, Cutout, normalisation and pipelines: torchvision's results, and one stream for each sample."""

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from torchvision.transforms import v2

from isda.lab.data.augment import (
    AutoAugment,
    Compose,
    Cutout,
    Draws,
    HorizontalFlip,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    RandomTranslation,
    ResizeCenterCrop,
    crop_flip,
    imagenet_evaluation,
    imagenet_training,
    translate_flip,
)
from isda.lab.data.augment.crops import crop, cutout, pad
from isda.lab.data.augment.draws import splitmix64

MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
SIZES = [(40, 60), (60, 40), (33, 33), (90, 31), (24, 24)]


def draws(count, seed=0, epoch=0):
    return Draws.for_samples(torch.arange(count), seed=seed, epoch=epoch)


# -- random numbers --------------------------------------------------------------------------------------------------


def test_outputs_are_the_published_ones_of_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = torch.tensor([1234567]) + torch.arange(3) * (0x9E3779B97F4A7C15 - (1 << 64))
    assert [value % (1 << 64) for value in splitmix64(states).tolist()] == published


def test_a_samples_numbers_depend_on_seed_epoch_and_index_and_not_on_how_they_are_drawn():
    whole = draws(6).uniform(5)
    parts = draws(6)
    assert torch.equal(torch.cat([parts.uniform(2), parts.uniform(3)], dim=1), whole)
    assert torch.equal(Draws.for_samples(torch.tensor([4]), seed=0).uniform(5)[0], whole[4])
    for other in (draws(6, seed=1), draws(6, epoch=1)):
        assert not torch.isin(other.uniform(5), whole).any()


def test_uniform_numbers_have_the_right_moments_and_no_correlation():
    values = draws(20000).uniform(3).double()
    assert 0 <= float(values.min()) < float(values.max()) < 1
    torch.testing.assert_close(values.mean(0), torch.full((3,), 0.5).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(values.var(0), torch.full((3,), 1 / 12).double(), atol=0.002, rtol=0)
    correlation = torch.corrcoef(torch.cat([values[:-1], values[1:]], dim=1).T) - torch.eye(6)
    assert float(correlation.abs().max()) < 0.03


@pytest.mark.parametrize("bound", [1, 2, 9, 25])
def test_integers_are_uniform(bound):
    counts = torch.bincount(draws(18000, seed=1).integers(bound)[:, 0], minlength=bound).double()
    assert len(counts) == bound
    expected = 18000 / bound
    # Mean plus five standard deviations of the chi-square distribution with bound - 1 degrees of freedom.
    assert float(((counts - expected) ** 2 / expected).sum()) <= (bound - 1) + 5 * (2 * (bound - 1)) ** 0.5


# -- crops, flips and Cutout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 9, 14)])
def test_pad_and_crop_equal_torchvision_image_by_image(images_of, shape, dtype, mode):
    images = images_of(*shape).to(dtype)
    top, left = torch.randint(0, 9, (2, len(images)))
    ours = crop(pad(images, 4, mode), top, left, *shape[1:])
    for row, image in enumerate(images):
        padded = tv.pad(image, [4], padding_mode=mode)
        assert torch.equal(ours[row], tv.crop(padded, int(top[row]), int(left[row]), *shape[1:]))


def position_images(count, size):
    """Every pixel holds its own position (row * size + column), plus one so that padding is 0."""
    return (torch.arange(size * size).view(1, 1, size, size) + 1).expand(count, 1, size, size)


def test_crop_offsets_are_uniform_over_nine_by_nine():
    counts = torch.bincount(RandomCrop(4)(position_images(16200, 9), draws(16200))[:, 0, 4, 4] - 1).double()
    assert len(counts) == 81
    assert abs(float(((counts - 200) ** 2 / 200).sum()) - 80) < 5 * (2 * 80) ** 0.5


def test_translation_moves_by_at_most_two_pixels_and_reflects():
    moved = RandomTranslation(2)(position_images(2000, 7), draws(2000))
    centre = moved[:, 0, 3, 3] - 1
    offsets = set(zip((centre // 7 - 3).tolist(), (centre % 7 - 3).tolist(), strict=True))
    assert offsets == {(row, column) for row in range(-2, 3) for column in range(-2, 3)}
    assert int(moved.min()) >= 1  # no padding value comes in


def test_flip_mirrors_half_of_the_images_and_leaves_the_others(images_of):
    images = images_of()[:1].repeat(4000, 1, 1, 1)[:, :, :4, :4].contiguous()
    flipped = HorizontalFlip()(images, draws(4000))
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    assert bool((mirrored ^ (flipped == images).flatten(1).all(1)).all())
    assert abs(float(mirrored.double().mean()) - 0.5) < 0.03


def test_cutout_is_the_published_square_clipped_at_the_border(images_of):
    images = images_of(3, 20, 24)
    rows, columns = torch.randint(0, 20, (len(images),)), torch.randint(0, 24, (len(images),))
    for length in (8, 5):
        ours = cutout(images, rows, columns, length, fill=(1, 2, 3))
        for image, result, row, column in zip(images, ours, rows.tolist(), columns.tolist(), strict=True):
            top, left = row - length // 2, column - length // 2
            expected = image.clone()
            hidden = expected[:, max(top, 0) : top + length, max(left, 0) : left + length]
            hidden.copy_(torch.tensor([1, 2, 3])[:, None, None].expand_as(hidden))
            assert torch.equal(result, expected)


def test_the_centre_of_cutout_is_uniform_and_each_sample_has_its_own():
    hidden = Cutout(16)(torch.ones(8000, 1, 32, 32), draws(8000)) == 0
    sides = [min(centre + 8, 32) - max(centre - 8, 0) for centre in range(32)]
    area = hidden.flatten(1).sum(1).double()
    assert abs(float(area.mean()) - (sum(sides) / 32) ** 2) < 2.5  # the standard error is below 0.6
    assert area.unique().numel() > 30


@pytest.mark.parametrize("transform", [RandomCrop(4), RandomCrop(4, "reflect"), HorizontalFlip(), Cutout(4)])
def test_inputs_stay_and_empty_and_non_contiguous_batches_work(images_of, transform):
    images = images_of(3, 8, 12)
    before = images.clone()
    assert transform(images[:0], draws(0)).shape == (0, 3, 8, 12)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(transform(channels_last, draws(len(images))), transform(images, draws(len(images))))
    assert torch.equal(images, before)


# -- ImageNet --------------------------------------------------------------------------------------------------------


def test_resized_crops_equal_torchvision_for_windows_of_its_distribution():
    count, size = 3000, (90, 130)
    transform, theirs_transform = RandomResizedCrop(32), v2.RandomResizedCrop(32)
    numbers = draws(count).uniform(40).view(count, 10, 4).tolist()
    windows = [transform.window(own, *size) for own in numbers]
    blank = torch.zeros(3, *size, dtype=torch.uint8)
    parameters = [theirs_transform.make_params([blank]) for _ in range(count)]
    ours = torch.tensor(windows).double()
    theirs = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in parameters]).double()
    error = ((ours.var(0) + theirs.var(0)) / count).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all())
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0, rtol=0.08)
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    for window, result in zip(windows[:9], transform([image] * 9, draws(9)), strict=True):
        assert torch.equal(result, tv.resized_crop(image, *window, [32, 32], antialias=True))


@pytest.mark.parametrize("size", [(10, 400), (400, 10), (64, 65)])
def test_when_no_attempt_fits_the_window_is_central_as_in_torchvision(size):
    # More than the image's whole area never fits.
    window = RandomResizedCrop(32, scale=(1.5, 2.0)).window([[0.5, 0.5, 0.5, 0.5]], *size)
    theirs = v2.RandomResizedCrop(32, scale=(1.5, 2.0)).make_params([torch.zeros(3, *size)])
    assert window == (theirs["top"], theirs["left"], theirs["height"], theirs["width"])


def test_evaluation_equals_torchvision_and_full_size_pipelines_give_normalised_batches(images_of):
    images = [images_of(3, *size)[row] for row, size in enumerate(SIZES)]
    theirs = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])
    assert torch.equal(ResizeCenterCrop(32, 28)(images), torch.stack([theirs(image) for image in images]))
    whole = [v2.Resize(256), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    expected = torch.stack([v2.Compose(whole)(image) for image in images])
    torch.testing.assert_close(imagenet_evaluation(MEAN, STD)(images), expected, atol=3e-6, rtol=0)
    trained = imagenet_training(MEAN, STD)(images, draws(5))
    assert (trained.shape, trained.dtype) == ((5, 3, 224, 224), torch.float32)


# -- pipelines -------------------------------------------------------------------------------------------------------

PIPELINES = {
    "crop + flip": crop_flip(MEAN, STD),
    "reflected crop + flip": crop_flip(MEAN, STD, padding_mode="reflect"),
    "cutout": crop_flip(MEAN, STD, extra=[Cutout(16)]),
    "randaugment": crop_flip(MEAN, STD, extra=[RandAugment(2, 14)]),
    "autoaugment": crop_flip(MEAN, STD, extra=[AutoAugment("cifar10"), Cutout(16)]),
    "translation": translate_flip(),
    "resized crop": Compose(RandomResizedCrop(24), HorizontalFlip(), Normalize(MEAN, STD)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_samples_augmentation_does_not_depend_on_how_the_data_are_split(images_of, name):
    images = images_of().repeat(5, 1, 1, 1)
    indices = torch.randperm(len(images)) + 1000
    state = torch.get_rng_state()
    whole = PIPELINES[name](images, Draws.for_samples(indices, seed=1, epoch=2))
    for mine in (torch.arange(0, len(images), 3), torch.arange(len(images) - 1, -1, -1)):
        part = PIPELINES[name](images[mine], Draws.for_samples(indices[mine], seed=1, epoch=2))
        assert torch.equal(part, whole[mine])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_epochs_and_views_differ(images_of, name):
    images = images_of()[:1].repeat(40, 1, 1, 1)
    twice = draws(40)
    first, second = (PIPELINES[name](images, twice) for _ in range(2))
    assert first.unique(dim=0).shape[0] > 20
    for other in (second, PIPELINES[name](images, draws(40, epoch=1))):
        assert float((other != first).flatten(1).any(1).double().mean()) > 0.8


def test_normalisation_equals_torchvisions(images_of):
    images = images_of()
    theirs = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])(images)
    torch.testing.assert_close(Normalize(MEAN, STD)(images), theirs, atol=3e-6, rtol=0)
    torch.testing.assert_close(Normalize(MEAN, STD)(images / 255), theirs, atol=3e-6, rtol=0)
    assert translate_flip()(theirs, draws(10)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: RandomCrop(4, "reflekt"), r"padding_mode must be one of .* did you mean 'reflect'\?"),
        (lambda x: RandomCrop(-1), "padding must be 0 or more pixels, got -1"),
        (lambda x: RandomCrop(4, "reflect")(x[:, :, :4], draws(10)), "less than the image's size 4x32 to reflect"),
        (lambda x: RandomCrop(4)(x[0], draws(3)), r"images must be an \(N, C, H, W\) tensor, got .*\(3, 32, 32\)"),
        (lambda x: RandomCrop(4)(x, draws(3)), "draws must have one key for each of 10 images .* got 3 keys"),
        (lambda x: crop_flip(MEAN, STD)(x), "draws must have one key for each of 10 images .* got None"),
        (lambda x: Cutout(0), "length must be at least 1 pixel, got 0"),
        (lambda x: RandomResizedCrop(32, scale=(0, 1)), r"scale must be \(low, high\) with 0 < low <= high"),
        (lambda x: ResizeCenterCrop(256, 300), r"size must be in 1\.\.256, not more than resize, got 300"),
        (lambda x: ResizeCenterCrop()([x[0], x[0, :1]]), r"images\[1\] must be \(C, H, W\) with the channels"),
        (lambda x: Normalize([0.5], [0.0]), "std must be positive"),
        (lambda x: Normalize([0.5], [0.5])(x), "images must have 1 channels, one for each mean, got 3"),
    ],
)
def test_wrong_arguments_are_named(images_of, call, message):
    with pytest.raises(ValueError, match=message):
        call(images_of())
