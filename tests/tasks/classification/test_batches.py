"""Batches: the order of an epoch and the augmentation of a sample depend on (seed, epoch, sample) and nothing else."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from isda.lab.data import ImageFiles
from isda.lab.data.augment import Compose, HorizontalFlip, Normalize, RandomResizedCrop
from isda.lab.tasks.classification.pipelines import evaluation_pipeline, training_pipeline
from isda.lab.tasks.common.data import ImageBatches, evaluation_batches
from small_runs import digits

INDICES = torch.arange(1297)[5::11]
PIPELINE = training_pipeline("translate-flip", (0.3,), (0.4,), "digits")
BATCHES = ImageBatches(
    images=digits().x_train, labels=digits().y_train, indices=INDICES, batch_size=20, pipeline=PIPELINE, seed=3
)


def assert_same(mine, theirs):
    assert torch.equal(mine.indices, theirs.indices)
    assert torch.equal(mine.targets, theirs.targets)
    assert torch.equal(mine.images, theirs.images)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_shows_every_sample_once_in_full_batches(epoch):
    order = BATCHES.order(epoch)
    assert order.shape == (len(INDICES) // 20, 20)
    assert len(order.unique()) == order.numel()
    assert torch.isin(order, INDICES).all()


def test_an_epoch_that_divides_evenly_is_a_permutation():
    order = replace(BATCHES, indices=INDICES[:100]).order(0)
    assert torch.equal(order.flatten().sort().values, INDICES[:100])
    assert not torch.equal(order.flatten(), INDICES[:100])


def test_samples_left_over_come_up_in_other_epochs():
    seen = torch.cat([BATCHES.order(epoch).flatten() for epoch in range(10)]).unique()
    assert torch.equal(seen, INDICES)


def test_the_order_changes_with_the_epoch_and_the_seed_and_nothing_else():
    first = BATCHES.order(2)
    torch.manual_seed(99)
    assert torch.equal(BATCHES.order(2), first)
    assert torch.equal(replace(BATCHES, world=3, rank=1).order(2), first)
    assert not torch.equal(BATCHES.order(3), first)
    assert not torch.equal(replace(BATCHES, seed=4).order(2), first)


def test_making_batches_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    list(BATCHES.epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_images_labels_and_indices_belong_together():
    plain = replace(BATCHES, pipeline=training_pipeline("none", (0.0,), (1.0,), "digits"))
    for batch, indices in zip(plain.epoch(1), plain.order(1), strict=True):
        assert torch.equal(batch.indices, indices)
        assert torch.equal(batch.targets, digits().y_train[indices])
        torch.testing.assert_close(batch.images * 255, digits().x_train[indices].float())


@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_an_epoch_can_be_taken_up_anywhere(start):
    whole, rest = list(BATCHES.epoch(2)), list(BATCHES.epoch(2, start))
    assert len(rest) == len(whole) - start
    for mine, theirs in zip(rest, whole[start:], strict=True):
        assert_same(mine, theirs)


def test_the_same_sample_looks_different_in_another_epoch():
    looks = [
        {int(i): image for batch in BATCHES.epoch(epoch) for i, image in zip(batch.indices, batch.images, strict=True)}
        for epoch in (0, 1)
    ]
    both = looks[0].keys() & looks[1].keys()
    same = sum(torch.equal(looks[0][i], looks[1][i]) for i in both)
    # 25 translations, each mirrored or not: one in 50 by chance.
    assert same < len(both) / 5


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_each_batch_without_changing_it(world):
    parts = [list(replace(BATCHES, rank=rank, world=world).epoch(1, start=2)) for rank in range(world)]
    for whole, *shares in zip(BATCHES.epoch(1, start=2), *parts, strict=True):
        sizes = [len(share.targets) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        for name in ("images", "targets", "indices"):
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(whole, name))


def test_fewer_samples_than_processes_are_refused():
    with pytest.raises(ValueError, match="batch_size must be at least 3, the number of processes, got 2"):
        replace(BATCHES, batch_size=2, world=3)


@pytest.fixture
def on_disk(tmp_path):
    """The first 60 digits as PNG files, in memory, and the batches of both."""
    pixels = digits().x_train[:60]
    paths = [tmp_path / f"{i:02d}.png" for i in range(60)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image[0].numpy()).save(path)
    pipeline = Compose(RandomResizedCrop(12), HorizontalFlip(), Normalize((0.3,), (0.4,)))
    in_memory = replace(BATCHES, images=pixels, indices=torch.arange(60), batch_size=7, pipeline=pipeline)
    return paths, in_memory, replace(in_memory, images=ImageFiles(paths, channels=1))


@pytest.mark.parametrize("workers", [1, 3, 20])
@pytest.mark.parametrize("start", [0, 6])
def test_files_give_the_batches_that_memory_gives(on_disk, workers, start):
    _, in_memory, files = on_disk
    for mine, theirs in zip(replace(files, workers=workers).epoch(1, start), in_memory.epoch(1, start), strict=True):
        assert_same(mine, theirs)


def test_a_file_that_cannot_be_read_is_named_when_its_batch_comes(on_disk):
    paths, _, files = on_disk
    broken = int(files.order(0)[3, 2])
    paths[broken].write_bytes(b"no picture")
    epoch = files.epoch(0)
    for _ in range(3):
        next(epoch)
    with pytest.raises(ValueError, match=f"{paths[broken].name} cannot be read as an image"):
        next(epoch)


def test_an_epoch_that_is_left_early_decodes_only_what_is_ahead(on_disk, monkeypatch):
    _, _, files = on_disk
    decoded = []
    read = ImageFiles.__getitem__
    monkeypatch.setattr(ImageFiles, "__getitem__", lambda self, index: (decoded.append(index), read(self, index))[1])
    epoch = replace(files, workers=2).epoch(0)
    next(epoch)
    epoch.close()
    assert len(decoded) <= 3 * 7


def test_evaluation_goes_through_the_samples_in_order():
    pipeline, data = evaluation_pipeline("none", (0.3,), (0.4,)), digits()
    cpu = torch.device("cpu")
    batches = list(evaluation_batches(data.x_test, data.y_test, INDICES[:30], pipeline, cpu, size=7))
    assert [len(batch.targets) for batch in batches] == [7, 7, 7, 7, 2]
    assert torch.equal(torch.cat([batch.indices for batch in batches]), INDICES[:30])
    assert torch.equal(torch.cat([batch.targets for batch in batches]), data.y_test[INDICES[:30]])
    expected = (data.x_test[INDICES[:30]].float() / 255 - 0.3) / 0.4
    torch.testing.assert_close(torch.cat([batch.images for batch in batches]), expected)


def test_images_and_targets_go_to_the_device_together():
    # "meta" stands in for an accelerator: a device that is not the CPU.
    device = torch.device("meta")
    batches = evaluation_batches(
        digits().x_test, digits().y_test, INDICES[:30], evaluation_pipeline("none", (0.3,), (0.4,)), device
    )
    for batch in batches:
        assert batch.images.device == batch.targets.device == device
