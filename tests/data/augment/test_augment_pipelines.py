"""Whole pipelines: each sample's result is its own, however the data are split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

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
    crop_flip,
    translate_flip,
)

Images = Callable[..., Tensor]
MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
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
def test_a_samples_augmentation_does_not_depend_on_how_the_data_are_split(images_of: Images, name: str) -> None:
    images = images_of().repeat(5, 1, 1, 1)
    indices = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)) + 1000
    augment = PIPELINES[name]
    whole = augment(images, Draws.for_samples(indices, seed=1, epoch=2))
    processes = 3
    for rank in range(processes):  # as a distributed sampler deals them out
        mine = torch.arange(rank, len(images), processes)
        part = augment(images[mine], Draws.for_samples(indices[mine], seed=1, epoch=2))
        assert torch.equal(part, whole[mine])
    reverse = torch.arange(len(images) - 1, -1, -1)
    assert torch.equal(augment(images[reverse], Draws.for_samples(indices[reverse], seed=1, epoch=2)), whole[reverse])


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_epochs_and_views_differ(images_of: Images, name: str) -> None:
    images = images_of()[:1].repeat(40, 1, 1, 1)
    augment = PIPELINES[name]
    draws = Draws.for_samples(torch.arange(40), seed=0, epoch=0)
    first_view, second_view = augment(images, draws), augment(images, draws)
    next_epoch = augment(images, Draws.for_samples(torch.arange(40), seed=0, epoch=1))
    assert first_view.unique(dim=0).shape[0] > 20
    for other in (second_view, next_epoch):
        assert float((other != first_view).flatten(1).any(1).double().mean()) > 0.8


def test_supervised_pipelines_give_float32_and_translation_keeps_the_dtype(images_of: Images) -> None:
    images = images_of()
    draws = Draws.for_samples(torch.arange(12), seed=0)
    assert crop_flip(MEAN, STD)(images, draws).dtype == torch.float32
    assert translate_flip()(images, draws).dtype == torch.uint8
    whitened = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert translate_flip()(whitened, draws).dtype == torch.float32


def test_translation_without_flip_never_mirrors() -> None:
    ramp = torch.arange(32).expand(200, 1, 32, 32)
    draws = Draws.for_samples(torch.arange(200), seed=0)
    middle = translate_flip(flip=False)(ramp, draws)[..., 10:20]
    assert bool((middle.diff(dim=-1) == 1).all())
    mirrored = translate_flip()(ramp, draws)[:, 0, 0, 10:12].diff(dim=-1) < 0
    assert 60 < int(mirrored.sum()) < 140


def test_generator_makes_a_pipeline_reproducible(images_of: Images) -> None:
    images = images_of()
    results = []
    for seed in (5, 5, 6):
        generator = torch.Generator().manual_seed(seed)
        results.append(PIPELINES["autoaugment"](images, Draws.from_generator(len(images), generator)))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_global_random_state_is_neither_used_nor_moved(images_of: Images) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for augment in PIPELINES.values():
        augment(images_of(), Draws.for_samples(torch.arange(12), seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_pipeline_without_draws_says_what_it_needs(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"draws must be Draws with one key for each of 12 images"):
        crop_flip(MEAN, STD)(images_of())


def test_compose_shows_its_steps() -> None:
    assert repr(Compose(RandomCrop(4), HorizontalFlip(), Cutout(16), RandAugment(2, 9), AutoAugment("svhn"))) == (
        "Compose(RandomCrop(padding=4, padding_mode='constant'), HorizontalFlip(), Cutout(length=16, fill=0), "
        "RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31, fill=0), AutoAugment(policy='svhn', fill=0))"
    )
