"""Labelled and unlabelled batches: what an epoch shows, as a function of (seed, epoch, sample) and nothing else."""

from dataclasses import replace

import pytest
import torch

from isda.lab.data.augment import Draws, Normalize
from isda.lab.methods.semi import defaults_for
from isda.lab.tasks.semi_supervised.data import WEAK, Views, semi_batches, shuffled_passes, split_data
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


@pytest.mark.parametrize("start", [0, 1, 5, 6])
def test_an_epoch_can_be_taken_up_anywhere(start):
    made = batches(method="fixmatch")
    whole, rest = list(made.epoch(2)), list(made.epoch(2, start))
    assert len(rest) == len(whole) - start == 6 - start
    for mine, theirs in zip(rest, whole[start:], strict=True):
        assert_same(mine, theirs)


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


def test_making_batches_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    list(batches(method="fixmatch").epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


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


@pytest.mark.parametrize("name", ["supervised+isda", "mean-teacher", "fixmatch+isda"])
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


@pytest.mark.parametrize(
    ("name", "second", "strong"),
    [("pi-model", 1, 0), ("temporal-ensembling", 0, 0), ("mean-teacher", 1, 0), ("vat", 0, 0), ("fixmatch", 0, 1)],
)
def test_methods_get_the_views_they_need_and_no_others(name, second, strong):
    view = next(batches(method=name).epoch(0)).unlabelled
    assert (view.second is not None, view.strong is not None) == (second, strong)


def test_the_floor_sees_no_unlabelled_images():
    for name, expected in (("supervised", None), ("supervised+isda", None), ("supervised+isda:eta_1=1", "images")):
        batch = next(semi_job(method=name).batches(0))
        assert (batch.unlabelled is None) == (expected is None)


class TestViews:
    IMAGES = torch.rand(64, 1, 9, 9)

    def draws(self):
        return Draws.for_samples(torch.arange(64), seed=5)

    def views(self, method, augment="translate-flip"):
        return Views.of(augment, defaults_for(method, "cifar10"), Normalize((0.0,), (1.0,)), (9, 9))

    def mirrored(self, view):
        """Whether each image of a view is a translation of the mirror image: its centre tells."""
        found = []
        for image, shown in zip(self.IMAGES, view, strict=True):
            centre = shown[0, 3:6, 3:6]
            places = [
                torch.equal(source[0, y : y + 3, x : x + 3], centre)
                for source in (image, image.flip(-1))
                for y in range(1, 6)
                for x in range(1, 6)
            ]
            assert sum(places) == 1
            found.append(any(places[25:]))
        return torch.tensor(found)

    @pytest.mark.parametrize(("method", "shared"), [("pi-model", True), ("mean-teacher", False)])
    def test_both_views_are_mirrored_alike_where_the_publication_does(self, method, shared):
        view = self.views(method).all(self.IMAGES, None, torch.arange(64), self.draws())
        assert not torch.equal(view.images, view.second)
        first, second = self.mirrored(view.images), self.mirrored(view.second)
        assert 10 < first.sum() < 54
        assert torch.equal(first, second) == shared

    @pytest.mark.parametrize("augment", WEAK)
    def test_the_first_of_several_views_is_the_only_one_of_few(self, augment):
        views = self.views("mean-teacher", augment)
        alone = views.first(self.IMAGES, self.draws())
        assert torch.equal(views.all(self.IMAGES, None, torch.arange(64), self.draws()).images, alone)
        assert torch.equal(alone, self.IMAGES) == (augment == "none")

    def test_strong_views_are_made_of_pixels_and_normalised(self):
        pixels = (255 * self.IMAGES).byte()
        view = self.views("fixmatch").all(self.IMAGES, pixels, torch.arange(64), self.draws())
        assert view.strong.dtype == torch.float32
        assert view.strong.min() >= 0
        assert view.strong.max() <= 1
        # Cutout hides a square of 4 x 4 pixels at most, 2 x 2 in a corner.
        hidden = (view.strong == 0).flatten(1).sum(1)
        assert hidden.min() >= 4
