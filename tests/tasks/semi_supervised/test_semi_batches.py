"""Labelled and unlabelled batches: what an epoch shows, as a function of (seed, epoch, sample) and nothing else."""

from dataclasses import replace

import pytest
import torch

from isda.lab.data.augment import Normalize
from isda.lab.methods.semi import defaults_for
from isda.lab.tasks.semi_supervised.data import semi_batches, shuffled_passes, split_data
from semi_runs import semi_config, semi_job
from small_runs import ALONE, digits


def batches(method="mean-teacher", needs_unlabelled=True, **changes):
    config = semi_config(method=method, **({"augment": "translate-flip"} | changes))
    settings = defaults_for(method.removesuffix("+isda"), changes.get("data", "digits"))
    normalise = Normalize(config.mean, config.std)
    split = split_data(config, digits())
    return semi_batches(config, digits(), split, settings, normalise, ALONE, needs_unlabelled=needs_unlabelled)


def assert_same(mine, theirs):
    for name in ("images", "targets", "indices"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
    for name in ("images", "second", "strong", "indices"):
        one, other = getattr(mine.unlabelled, name), getattr(theirs.unlabelled, name)
        assert one is other is None or torch.equal(one, other)


def test_the_pool_is_the_labelled_images_and_as_many_others_as_asked_for():
    made, split = batches(), split_data(semi_config(method="vat"), digits())
    assert (len(made.pool), len(made.labelled)) == (250, 50)
    assert len(made.pool.unique()) == 250
    assert torch.equal(made.pool[made.labelled], split.labelled)
    assert made.targets.bincount().tolist() == [5] * 10
    assert torch.equal(made.targets, digits().y_train[made.pool[made.labelled]])


def test_fewer_unlabelled_images_are_part_of_more():
    few, many = (split_data(semi_config(method="vat", unlabelled=count), digits()).unlabelled for count in (100, 300))
    assert torch.isin(few, many).all()
    everything = split_data(semi_config(method="vat", unlabelled=None), digits())
    assert torch.equal(torch.cat([everything.labelled, everything.unlabelled]).sort().values, torch.arange(1297))


def test_held_out_images_are_in_neither_part():
    split = split_data(semi_config(method="vat", held_out=300, unlabelled=None), digits())
    parts = torch.cat([split.labelled, split.unlabelled, split.evaluation.indices])
    assert torch.equal(parts.sort().values, torch.arange(1297))


def test_an_epoch_shows_the_pool_once_without_labels():
    made = batches(batch_size=50)
    seen = torch.cat([batch.unlabelled.indices for batch in made.epoch(3)])
    assert torch.equal(seen.sort().values, torch.arange(250))


@pytest.mark.parametrize(("data", "expected"), [("digits", 50), ("svhn", 0)])
def test_labelled_images_are_used_without_their_label_where_the_publication_does(data, expected):
    made = batches(data=data)
    assert int(torch.isin(made.unlabelled, made.labelled).sum()) == expected


def test_labelled_images_are_gone_through_again_and_again():
    """72 draws of 50 labelled images: each once or twice, and the first 50 are all of them."""
    seen = torch.cat([batch.indices for batch in batches().epoch(0)])
    assert len(seen) == 72
    assert len(seen[:50].unique()) == 50
    assert seen.unique(return_counts=True)[1].max() == 2


def test_a_pass_is_a_permutation_and_the_next_another():
    positions, passes = shuffled_passes(20, 50, 1)
    assert passes.bincount().tolist() == [20, 20, 10]
    first, second = positions[:20], positions[20:40]
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_both_halves_of_each_batch_without_changing_them(world):
    made = batches(batch_size=41, labelled_per_batch=11)
    parts = [list(replace(made, rank=rank, world=world).epoch(1)) for rank in range(world)]
    for whole, *shares in zip(made.epoch(1), *parts, strict=True):
        for name in ("images", "targets", "indices"):
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(whole, name))
        for name in ("images", "second", "indices"):
            together = torch.cat([getattr(share.unlabelled, name) for share in shares])
            assert torch.equal(together, getattr(whole.unlabelled, name))


def test_fewer_labelled_images_than_processes_are_refused():
    with pytest.raises(ValueError, match=r"labelled_per_batch and batch_size must be at least 3, .* got 2 and 40"):
        replace(batches(labelled_per_batch=2), world=3)


def test_the_same_image_looks_different_each_time():
    """In another epoch, in another pass of the same one, and with or without its label: 1 in 50 by chance."""
    made = batches(labelled_per_batch=50)
    looks = [{} for _ in range(4)]
    for place, epoch in enumerate((0, 1)):
        for step, batch in enumerate(made.epoch(epoch)):
            if step < 2:
                looks[place + 2 * step] |= dict(zip(batch.indices.tolist(), batch.images, strict=True))
    without = {
        int(made.pool[i]): image
        for batch in made.epoch(0)
        for i, image in zip(batch.unlabelled.indices, batch.unlabelled.images, strict=True)
    }
    for one, other in ((looks[0], looks[1]), (looks[0], looks[2]), (looks[0], without)):
        both = one.keys() & other.keys()
        assert len(both) > 40
        assert sum(torch.equal(one[i], other[i]) for i in both) < len(both) / 5


@pytest.mark.parametrize("name", ["supervised+isda", "mean-teacher"])
def test_runs_of_one_seed_are_paired(name):
    """The same images with the same augmentation, labelled and unlabelled, whatever the method."""
    mine, reference = semi_job(method=name, seed=2), semi_job(method="pi-model", seed=2)
    for one, other in zip(mine.network.parameters(), reference.network.parameters(), strict=True):
        assert torch.equal(one, other)
    for batch, expected in zip(mine.batches(1), reference.batches(1), strict=True):
        assert torch.equal(batch.images, expected.images)
        if batch.unlabelled is not None:
            assert torch.equal(batch.unlabelled.images, expected.unlabelled.images)
            assert torch.equal(batch.unlabelled.indices, expected.unlabelled.indices)


def test_the_floor_sees_no_unlabelled_images():
    for name, expected in (("supervised", None), ("supervised+isda", None), ("supervised+isda:eta_1=1", "images")):
        batch = next(semi_job(method=name).batches(0))
        assert (batch.unlabelled is None) == (expected is None)
