"""Augmentation by name: what each name does to a batch, and that evaluation has no randomness."""

import pytest
import torch

from isda.lab.data.augment import AutoAugment, Cutout, Draws, HorizontalFlip, RandAugment, RandomCrop, RandomTranslation
from isda.lab.tasks.classification.pipelines import (
    AUGMENTATIONS,
    RESIZING,
    InputFormat,
    check_augmentation,
    evaluation_pipeline,
    training_pipeline,
)

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def images(count=6, size=32):
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8)


def draws(count=6, epoch=0):
    return Draws.for_samples(torch.arange(count), seed=0, epoch=epoch)


def normalised(pixels):
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_name_makes_normalised_images_of_a_size_the_network_takes(name):
    augmented = training_pipeline(name, MEAN, STD, "cifar10")(images(), draws())
    assert augmented.dtype == torch.float32
    assert augmented.shape == (6, 3, *((224, 224) if name in RESIZING else (32, 32)))


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_every_augmentation_is_random_and_decided_by_the_draws(name):
    pipeline, pixels = training_pipeline(name, MEAN, STD, "cifar10"), images()
    first, again, later = (pipeline(pixels, draws(epoch=epoch)) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_none_only_normalises():
    pixels = images()
    augmented = training_pipeline("none", MEAN, STD, "cifar10")(pixels, draws())
    torch.testing.assert_close(augmented, normalised(pixels))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("crop", [RandomCrop]),
        ("crop-flip", [RandomCrop, HorizontalFlip]),
        ("translate", [RandomTranslation]),
        ("cutout", [RandomCrop, HorizontalFlip, Cutout]),
        ("randaugment", [RandomCrop, HorizontalFlip, RandAugment]),
        ("autoaugment", [RandomCrop, HorizontalFlip, AutoAugment, Cutout]),
    ],
)
def test_the_transforms_come_in_the_papers_order_before_normalisation(name, kinds):
    transforms = training_pipeline(name, MEAN, STD, "cifar10").transforms
    assert [type(transform) for transform in transforms[:-1]] == kinds


def test_randaugment_takes_its_n_and_m_from_the_name():
    for name, settings in (("randaugment-3-5", (3, 5)), ("randaugment", (2, 9))):
        transform = training_pipeline(name, MEAN, STD, "cifar10").transforms[2]
        assert (transform.num_ops, transform.magnitude) == settings
    assert check_augmentation("randaugment-14-30") == "randaugment-14-30"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("randaugment-0-5", "N of augment=randaugment-N-M must be from 1 to 14, got randaugment-0-5"),
        ("randaugment-2-31", "magnitude must be a level from 0 to 30, got 31"),
        ("randaugment-2", "did you mean 'randaugment'"),
    ],
)
def test_bad_settings_of_randaugment_get_a_sentence(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_augmentation(name)


def test_translation_goes_two_pixels_at_most_and_flips_where_it_says():
    pixels = torch.zeros(200, 3, 9, 9, dtype=torch.uint8)
    pixels[:, :, 4, 3] = 255
    seen = {}
    for name in ("translate", "translate-flip"):
        moved = training_pipeline(name, (0.0,) * 3, (1.0,) * 3, "cifar10")(pixels, draws(200))
        bright = (moved[:, 0] > 0.5).nonzero()
        seen[name] = {(row, column) for _, row, column in bright.tolist()}
    expected = {(4 + dy, 3 + dx) for dy in range(-2, 3) for dx in range(-2, 3)}
    assert seen["translate"] == expected
    assert seen["translate-flip"] == expected | {(row, 8 - column) for row, column in expected}


@pytest.mark.parametrize(("data", "policy"), [("svhn", "svhn"), ("imagenet", "imagenet"), ("holiday", "cifar10")])
def test_autoaugment_has_the_policy_of_the_data_set(data, policy):
    assert repr(AutoAugment(policy)) == repr(training_pipeline("autoaugment", MEAN, STD, data).transforms[2])


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_evaluation_needs_no_draws_and_repeats_itself(name):
    pipeline, pixels = evaluation_pipeline(name, MEAN, STD), images(3, 40)
    shown = pipeline(pixels)
    assert torch.equal(shown, pipeline(pixels))
    if name not in RESIZING:
        torch.testing.assert_close(shown, normalised(pixels))


def test_imagenet_is_evaluated_at_the_central_crop():
    pipeline = evaluation_pipeline("imagenet", MEAN, STD)
    pixels = images(2, 256)
    torch.testing.assert_close(pipeline(pixels), normalised(pixels[:, :, 16:240, 16:240]))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_pretrained_network_sees_every_image_at_its_own_size_and_in_colour(name):
    seen = InputFormat(channels=3, size=48, resize=56)
    decoded = [torch.randint(256, (3, 30 + i, 40), dtype=torch.uint8) for i in range(6)]
    for pixels in (images(6, 20), images(6, 20)[:, :1], decoded):
        assert training_pipeline(name, MEAN, STD, "cifar10", seen)(pixels, draws()).shape == (6, 3, 48, 48)
        assert evaluation_pipeline(name, MEAN, STD, seen)(pixels).shape == (6, 3, 48, 48)
    exact = images(2, 56)
    torch.testing.assert_close(evaluation_pipeline(name, MEAN, STD, seen)(exact), normalised(exact[:, :, 4:52, 4:52]))
