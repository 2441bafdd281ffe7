"""A share of generated images in every batch: which, with which labels, through interruptions and processes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from generative_runs import small_config as generator_config
from isda.lab.data import DataSet
from isda.lab.engine import Hook, Saving, Stopped
from isda.lab.seeds import generator
from isda.lab.tasks.classification.generated import count_per_batch
from isda.lab.tasks.common.generators import GeneratedImages, load_generator, make_images
from isda.lab.tasks.gan.task import Generation
from isda.lab.train import Classification, SemiSettings, Settings, resolve, train
from resumable_runs import outcome
from small_runs import HERE, SMALL, digits, small_config, small_job
from two_devices import assert_the_same, needs_a_device, on_host_and_device

BATCH = 20
PER_BATCH = 3


@pytest.fixture(scope="module")
def generators(finished_run, tmp_path_factory) -> dict[str, Path]:
    """A generator for all classes and one for each, hardly trained."""
    top = tmp_path_factory.mktemp("generators")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in ("cgan", "wgan"):
            config = generator_config(finished_run, method=method, epochs=1)
            train(config, digits(), top / method, task=Generation())
    return {method: top / method for method in ("cgan", "wgan")}


@pytest.fixture(params=["cgan", "wgan"])
def folder(request, generators) -> Path:
    return generators[request.param]


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_has_its_size_and_a_sixth_of_it_is_generated_with_the_labels_kept(folder):
    job = small_job(generated=str(folder))
    assert job.config.generated_per_batch == PER_BATCH == count_per_batch(1 / 6, BATCH)
    assert job.config.steps_per_epoch == 5, "as many steps as without"
    network, seen = load_generator(folder).network, []
    mean, std = job.config.mean[0], job.config.std[0]
    for step, batch in enumerate(job.batches(2)):
        assert len(batch.targets) == BATCH
        real, made = batch.indices[:-PER_BATCH], batch.indices[-PER_BATCH:]
        assert torch.equal(batch.targets[:-PER_BATCH], digits().y_train[real])
        expected = (digits().x_train[real] / 255 - mean) / std
        torch.testing.assert_close(batch.images[:-PER_BATCH], expected, rtol=1e-5, atol=1e-5)
        # Classes in turn, images from (seed, epoch, step), normalised as real ones are.
        labels = (step * PER_BATCH + torch.arange(PER_BATCH)) % 10
        assert torch.equal(batch.targets[-PER_BATCH:], labels)
        images = make_images(network, labels, generator(0, 0x67656E65, 2, step))
        torch.testing.assert_close(batch.images[-PER_BATCH:], (images / 255 - mean) / std, rtol=1e-5, atol=1e-5)
        seen += real.tolist()
        assert (made >= len(digits().y_train)).all()
    assert len(seen) == len(set(seen)) == 5 * (BATCH - PER_BATCH)


def test_generated_images_are_augmented_as_real_ones_each_in_its_own_way(folder):
    plain, moved = (small_job(generated=str(folder), augment=augment) for augment in ("none", "translate"))
    one, other = (next(job.batches(0)) for job in (plain, moved))
    assert torch.equal(one.targets, other.targets)
    changed = (one.images != other.images).flatten(1).any(1)
    assert changed[-PER_BATCH:].any()
    again = next(small_job(generated=str(folder), augment="translate").batches(0))
    assert torch.equal(again.images, other.images)
    keys = [next(small_job(generated=str(folder)).batches(epoch)).indices for epoch in (0, 1)]
    assert torch.equal(keys[0][-PER_BATCH:], keys[1][-PER_BATCH:]), "the epoch is mixed in beside"


def test_batches_do_not_depend_on_processes_nor_on_where_an_epoch_is_taken_up(folder):
    source = small_job(generated=str(folder), generated_share=0.35, augment="translate").source
    whole = list(source.epoch(1))
    for world in (2, 3):
        parts = [list(replace(source, rank=rank, world=world).epoch(1)) for rank in range(world)]
        for step, batch in enumerate(whole):
            sizes = [len(part[step].targets) for part in parts]
            assert sum(sizes) == BATCH
            assert max(sizes) - min(sizes) <= 1
            joined = torch.cat([part[step].indices for part in parts])
            order, wanted = joined.argsort(), batch.indices.argsort()
            assert torch.equal(joined[order], batch.indices[wanted])
            for name in ("images", "targets"):
                mine = torch.cat([getattr(part[step], name) for part in parts])
                assert torch.equal(mine[order], getattr(batch, name)[wanted])
    (last,) = source.epoch(1, start=4)
    assert torch.equal(last.images, whole[4].images)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_parts_of_processes_are_the_whole_in_order(generators, world):
    images = GeneratedImages(load_generator(generators["cgan"]).network, 7, seed=3)
    whole = images.part(4, 2)
    parts = [images.part(4, 2, rank, world) for rank in range(world)]
    for name in ("images", "labels", "numbers"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert not torch.equal(images.part(4, 3).images, whole.images)
    assert not torch.equal(replace(images, seed=4).part(4, 2).images, whole.images)


@needs_a_device
def test_a_step_off_the_cpu_is_the_same_and_waits_for_nothing(folder, tmp_path):
    config = small_config(generated=str(folder), method="isda", precision="float64")
    host, device = on_host_and_device(Classification(), config, digits(), tmp_path)
    assert_the_same(host, device, rtol=1e-6, atol=1e-6)
    assert device.waits[-1] == []


# -- runs ------------------------------------------------------------------------------------------------------------


class StopAt(Hook):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            raise Stopped("enough")


@pytest.mark.parametrize("method", ["cross-entropy", "isda:lambda_0=2"])
def test_a_run_with_any_method_survives_an_interruption_bit_for_bit(generators, tmp_path, method):
    config = small_config(generated=str(generators["wgan"]), method=method, augment="translate")
    train(config, digits(), tmp_path / "whole", saving=Saving(steps=1))
    with pytest.raises(Stopped):
        train(config, digits(), tmp_path / "again", saving=Saving(steps=1), hooks=[StopAt(7)])
    train(config, digits(), tmp_path / "again", saving=Saving(steps=1))
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")
    without = small_config(method=method, augment="translate")
    train(without, digits(), tmp_path / "without", saving=Saving(steps=1))
    assert outcome(tmp_path / "without")["model.safetensors"] != outcome(tmp_path / "whole")["model.safetensors"]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generated_share": 0.0}, "generated_share must lie strictly between 0 and 1, got 0.0"),
        ({"generated_share": 1.0}, "generated_share must lie strictly between 0 and 1, got 1.0"),
        ({"generated_share": 0.01}, "must leave both kinds of images in a batch of 20, got 0.01"),
        ({"generated": "nowhere"}, "no run in nowhere"),
        ({"held_out": 50}, "trained with held_out=50 as well, this one with 0: it was trained on evaluation images"),
    ],
)
def test_what_makes_no_sense_is_refused(generators, changes, message):
    with pytest.raises(ValueError, match=message):
        small_config(**({"generated": str(generators["cgan"])} | changes))


def test_a_share_without_a_generator_and_semi_supervised_runs_are_refused(generators):
    with pytest.raises(ValueError, match="generated_share must come with generated"):
        small_config(generated_share=0.2)
    settings = SemiSettings(**SMALL, method="vat", generated=str(generators["cgan"]))
    with pytest.raises(ValueError, match="method vat does not support --generated"):
        resolve(settings, digits())


def test_a_generator_of_other_classes_or_images_is_refused(generators, finished_run):
    data = digits()
    renamed = DataSet("letters", data.x_train, data.y_train, data.x_test, data.y_test, tuple("abcdefghij"))
    with pytest.raises(ValueError, match=r"classes and images of letters, got .*, which has 10 classes of digits"):
        resolve(Settings(**SMALL, generated=str(generators["cgan"])), renamed)
    large = data.x_train.repeat(1, 1, 4, 4), data.x_test.repeat(1, 1, 4, 4)
    enlarged = DataSet("large", large[0], data.y_train, large[1], data.y_test, data.classes)
    with pytest.raises(ValueError, match="whose images are 1x8x8"):
        resolve(Settings(**SMALL, generated=str(generators["cgan"])), enlarged)
    with pytest.raises(ValueError, match="must be of a generator, got the task 'classification'"):
        small_config(generated=str(finished_run))


def test_a_generator_that_knows_more_labels_than_the_classifier_is_told_of(generators):
    with pytest.warns(UserWarning, match="was trained on 100 images drawn with seed 0, the classifier gets 50 drawn"):
        small_config(generated=str(generators["cgan"]), labels=50)
    job = Classification().start(small_config(generated=str(generators["cgan"])), digits(), HERE)
    assert job.config.generated
