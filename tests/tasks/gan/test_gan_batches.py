"""Batches of real images and what is drawn beside them: the same for any number of processes, from any step on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from generative_runs import small_config, small_job
from isda.lab.engine import Processes
from isda.lab.networks.generative import create_generator, from_pixels
from isda.lab.tasks.gan.data import balanced_order, draw_latents
from small_runs import digits


@pytest.mark.parametrize("method", ["wgan", "acgan"])
def test_batches_do_not_depend_on_processes_nor_on_where_an_epoch_is_taken_up(finished_run, method):
    source = small_job(finished_run, method=method).source
    whole = list(source.epoch(3))
    assert [len(batch.labels) for batch in whole] == [20] * 5
    parts = [list(replace(source, processes=Processes(r, 3, torch.device("cpu"))).epoch(3)) for r in range(3)]
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([part[step].images for part in parts]), batch.images)
        assert torch.equal(torch.cat([part[step].labels for part in parts]), batch.labels)
    last = list(source.epoch(3, start=4))
    assert len(last) == 1
    assert torch.equal(last[0].images, whole[4].images)
    assert not torch.equal(next(source.epoch(4)).images, whole[0].images)


def test_images_carry_their_labels_and_lie_between_minus_one_and_one(finished_run):
    job = small_job(finished_run, method="cgan")
    batch = next(job.batches(0))
    indices = job.source.order(0)[0]
    assert torch.equal(batch.images, from_pixels(digits().x_train[indices]))
    assert torch.equal(batch.labels, digits().y_train[indices])
    assert batch.images.min() == -1
    assert set(job.source.order(0).flatten().tolist()) <= set(job.training.tolist())


def test_batches_of_wgan_have_every_class_equally_often(finished_run):
    for batch in small_job(finished_run, method="wgan").batches(1):
        assert batch.labels.tolist() == list(range(10)) * 2


@pytest.mark.parametrize(("method", "batch", "turns"), [("wgan", 640, 5), ("wgan:n_critic=2", 640, 2), ("cgan", 64, 1)])
def test_every_network_has_published_batches_and_as_many_steps_of_its_generator(finished_run, method, batch, turns):
    """64 images of each class for WGAN, which has networks of each class (Arjovsky et al., 2017); 40,000 is ours."""
    config = small_config(finished_run, method=method, labels=None, batch_size=None, epochs=None)
    assert config.batch_size == batch
    assert config.total_steps / turns == pytest.approx(40_000, rel=0.01)


def test_few_images_make_smaller_batches(finished_run):
    assert small_config(finished_run, method="wgan", batch_size=None).batch_size == 100


def test_a_class_with_few_images_shows_all_of_them_before_one_comes_again():
    order = balanced_order([torch.arange(3), torch.arange(3, 11)], steps=4, each=2, seed=1, epoch=0)
    assert order.shape == (4, 4)
    few, many = order.view(-1, 2).T
    assert sorted(few[:3].tolist()) == sorted(few[3:6].tolist()) == [0, 1, 2]
    assert sorted(many.tolist()) == list(range(3, 11))


def test_what_a_turn_draws_does_not_depend_on_processes_but_on_seed_step_and_turn():
    network = create_generator("dcgan", 4, channels=1, size=8, width=0.1, noise=3)
    alone = Processes(0, 1, torch.device("cpu"))
    whole = draw_latents(network, 10, (0, 5, 1), alone)
    parts = [draw_latents(network, 10, (0, 5, 1), Processes(rank, 3, torch.device("cpu"))) for rank in range(3)]
    for name in ("latent", "labels", "share"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    for other in ((1, 5, 1), (0, 6, 1), (0, 5, 2)):
        assert not torch.equal(draw_latents(network, 10, other, alone).latent, whole.latent)
    # Classes go on where the step before has ended.
    assert whole.labels.tolist() == [(50 + i) % 4 for i in range(10)]
