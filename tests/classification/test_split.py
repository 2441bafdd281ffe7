"""Which images a run trains on and which judge it: never the same, and decided by the seed where it should."""

import torch

from isda.classification.split import split_data
from small_runs import digits, small_config


def test_without_wishes_all_images_train_and_the_test_images_judge():
    split = split_data(small_config(labels=None), digits())
    assert torch.equal(split.training, torch.arange(1297))
    assert split.images is digits().x_test
    assert split.labels is digits().y_test
    assert torch.equal(split.evaluation, torch.arange(500))


def test_labels_are_balanced_and_drawn_with_the_seed():
    first, again, other = (split_data(small_config(seed=seed), digits()).training for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert digits().y_train[first].bincount().tolist() == [10] * 10


def test_a_method_does_not_change_which_images_are_used():
    parts = [split_data(small_config(seed=3, method=method), digits()).training for method in ("isda", "cross-entropy")]
    assert torch.equal(*parts)


def test_held_out_images_are_training_images_that_are_not_trained_on():
    split = split_data(small_config(labels=None, held_out=300), digits())
    assert split.images is digits().x_train
    assert split.labels is digits().y_train
    assert len(split.evaluation) == 300
    together = torch.cat([split.training, split.evaluation]).sort().values
    assert torch.equal(together, torch.arange(1297))


def test_the_same_images_are_held_out_whatever_the_seed_and_the_number_of_labels():
    cases = [{"seed": 1}, {"seed": 2}, {"seed": 2, "labels": 50}, {"seed": 1, "labels": None}]
    splits = [split_data(small_config(held_out=200, **case), digits()) for case in cases]
    assert all(torch.equal(split.evaluation, splits[0].evaluation) for split in splits)
    assert not any(torch.isin(split.training, split.evaluation).any() for split in splits)


def test_labels_are_counted_without_those_held_out():
    config = small_config(labels=60, held_out=700)
    split = split_data(config, digits())
    assert len(split.training) == config.train_images == 60
    assert len(split.evaluation) == config.test_images == 700
