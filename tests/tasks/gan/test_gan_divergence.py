"""What goes wrong is noticed: losses that are no numbers, generators that collapse, discriminators that know it all."""

from __future__ import annotations

import warnings

import pytest
import torch

from generative_runs import small_config, small_job
from isda.lab.engine import NonFiniteLoss, train
from isda.lab.tasks.gan.job import divergence_warnings
from isda.lab.tasks.gan.task import Generation
from small_runs import digits


def test_a_loss_that_is_no_number_ends_the_run_with_the_step(finished_run, tmp_path):
    config = small_config(finished_run, method="wgan:penalty=10", lr=1e30)
    with pytest.raises(NonFiniteLoss, match=r"the loss became infinite or not a number in step \d"):
        train(config, digits(), tmp_path / "run", task=Generation())


def test_a_generator_that_makes_one_image_of_each_class_is_said_to_have_collapsed(finished_run):
    job = small_job(finished_run, epochs=4)
    with torch.no_grad():
        # Nothing but the class reaches the images.
        job.players.generator.body.project.weight[:, :100] = 0
    with pytest.warns(UserWarning, match="has collapsed: after epoch 2 its images of a class differ by 0.00"):
        job.finish_epoch(2, 10)
    # It is said once, and not in the first half of a run.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.finish_epoch(3, 15)
        small_job(finished_run, epochs=4).finish_epoch(1, 5)


def test_a_discriminator_that_tells_all_images_apart_is_said_to_do_so(finished_run):
    job = small_job(finished_run, epochs=2, evaluate_every=2, method="cgan")
    with torch.no_grad():
        # Everything passes for real.
        job.players.discriminator.score.weight.zero_()
        job.players.discriminator.score.bias.fill_(5)
    job._turn("discriminator", next(job.batches(0)), 0)
    assert float(job.sums["told_apart"]) == 50 * 20, "all real images, and no generated one"
    job.sums["told_apart"] = torch.tensor(100.0 * 20, dtype=torch.float64)
    with pytest.warns(UserWarning, match="tells 100.0% of real and generated images apart in epoch 1"):
        job.finish_epoch(1, 5)


def test_nothing_is_said_of_a_run_that_goes_well():
    assert divergence_warnings({"epoch": 9, "test/diversity": 0.5, "train/told_apart": 80.0}, "test") == {}
    assert divergence_warnings({"epoch": 9, "train/wasserstein": 80.0}, "test") == {}
    one = divergence_warnings({"epoch": 9, "test/diversity": 0.9, "test/least_diversity": 0.1}, "test")
    assert "its images of one class at least differ by 0.10 of what" in one["collapse"]
    assert set(divergence_warnings({"epoch": 9, "test/diversity": 0.2, "train/told_apart": 99.9}, "test")) == {
        "collapse",
        "saturation",
    }
