"""Which images a run trains on and which judge it: never the same, and decided by the seed where it should."""

import torch

from isda.lab.data import hold_out
from isda.lab.tasks.common.data import split_data
from small_runs import digits, small_config


def test_without_wishes_all_images_train_and_the_test_images_judge():
    training, evaluation = split_data(small_config(labels=None), digits())
    assert torch.equal(training, torch.arange(1297))
    assert evaluation.images is digits().x_test
    assert evaluation.labels is digits().y_test
    assert torch.equal(evaluation.indices, torch.arange(500))


def test_labels_are_balanced_and_drawn_with_the_seed():
    first, again, other = (split_data(small_config(seed=seed), digits())[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert digits().y_train[first].bincount().tolist() == [10] * 10


def test_a_method_does_not_change_which_images_are_used():
    parts = [split_data(small_config(seed=3, method=method), digits())[0] for method in ("isda", "cross-entropy")]
    assert torch.equal(*parts)


def test_held_out_images_are_training_images_that_are_not_trained_on():
    training, evaluation = split_data(small_config(labels=None, held_out=300), digits())
    assert evaluation.images is digits().x_train
    assert evaluation.labels is digits().y_train
    assert len(evaluation.indices) == 300
    together = torch.cat([training, evaluation.indices]).sort().values
    assert torch.equal(together, torch.arange(1297))


def test_the_same_images_are_held_out_whatever_the_seed_and_the_number_of_labels():
    cases = [{"seed": 1}, {"seed": 2}, {"seed": 2, "labels": 50}, {"seed": 1, "labels": None}]
    splits = [split_data(small_config(held_out=200, **case), digits()) for case in cases]
    held_out = splits[0][1].indices
    assert all(torch.equal(evaluation.indices, held_out) for _, evaluation in splits)
    assert not any(torch.isin(training, held_out).any() for training, _ in splits)


def test_the_images_held_out_are_those_of_seed_zero_in_every_version():
    """Errors of different runs and versions are compared on them."""
    _, evaluation = split_data(small_config(held_out=200, seed=5), digits())
    assert torch.equal(evaluation.indices, hold_out(digits().y_train, 200, seed=0).held_out)


def test_labels_are_counted_without_those_held_out():
    config = small_config(labels=60, held_out=700)
    training, evaluation = split_data(config, digits())
    assert len(training) == config.train_images == 60
    assert len(evaluation.indices) == config.test_images == 700
