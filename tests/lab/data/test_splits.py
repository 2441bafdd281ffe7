"""Splits: balanced, reproducible, and never the same sample on both sides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isda.lab import seeds
from isda.lab.data import balanced_sample, hold_out, semi_supervised_split

CIFAR10_LABELS = torch.arange(50_000) % 10
CIFAR100_LABELS = torch.arange(50_000) % 100


def assert_partition(size, *parts):
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(size))


@pytest.mark.parametrize(("labels", "per_class"), [(CIFAR10_LABELS, 500), (CIFAR100_LABELS, 50)])
def test_the_papers_5000_are_disjoint_from_the_rest_and_balanced(labels, per_class):
    split = hold_out(labels, seed=0)
    assert_partition(50_000, split.training, split.held_out)
    assert labels[split.held_out].bincount().unique().tolist() == [per_class]


# The paper's table of semi-supervised results: 1,000 to 4,000 on CIFAR-10, 10,000 and 20,000 on CIFAR-100, 500 on SVHN.
@pytest.mark.parametrize(
    ("labels", "labelled"),
    [*((CIFAR10_LABELS, n) for n in (500, 1000, 2000, 4000)), *((CIFAR100_LABELS, n) for n in (10_000, 20_000))],
)
def test_labelled_samples_are_balanced_and_a_quarter_of_them_is_held_out(labels, labelled):
    split = semi_supervised_split(labels, labelled, seed=0)
    assert_partition(50_000, split.training, split.held_out, split.unlabelled)
    assert len(split.held_out) == labelled / 4
    counts = labels[split.labelled].bincount()
    assert counts.unique().tolist() == [labelled // len(counts)]
    held_out = labels[split.held_out].bincount()
    assert held_out.max() - held_out.min() <= 1
    assert torch.equal(split.labelled, torch.cat([split.training, split.held_out]).sort().values)


def test_what_the_limits_allow_is_possible():
    labels = torch.arange(3).repeat_interleave(10)
    none = semi_supervised_split(labels, 9, unlabelled=0)
    assert len(none.unlabelled) == 0
    everything = semi_supervised_split(labels, 9, unlabelled=21)
    assert_partition(30, everything.training, everything.held_out, everything.unlabelled)
    assert len(semi_supervised_split(labels, 30, held_out_fraction=0).training) == 30
    assert len(semi_supervised_split(labels, 2, held_out_fraction=0.5).held_out) == 1


def test_more_classes_than_labels_leave_some_classes_without():
    split = semi_supervised_split(torch.arange(10).repeat(4), 6, seed=1, held_out_fraction=0.5)
    assert_partition(40, split.training, split.held_out, split.unlabelled)
    assert (len(split.training), len(split.held_out)) == (3, 3)


def test_what_is_labelled_does_not_depend_on_how_much_is_held_out():
    whole = semi_supervised_split(CIFAR10_LABELS, 1000, seed=3, held_out_fraction=0)
    quarter = semi_supervised_split(CIFAR10_LABELS, 1000, seed=3)
    assert len(whole.held_out) == 0
    assert torch.equal(whole.training, quarter.labelled)


def test_what_is_unlabelled_does_not_depend_on_how_much_is_held_out():
    few, quarter = (
        semi_supervised_split(CIFAR10_LABELS, 1000, seed=3, held_out_fraction=share, unlabelled=5000)
        for share in (0, 0.25)
    )
    assert len(few.unlabelled) == 5000
    assert torch.equal(few.unlabelled, quarter.unlabelled)
    assert not torch.isin(few.unlabelled, few.labelled).any()
    everything = semi_supervised_split(CIFAR10_LABELS, 1000, seed=3)
    assert torch.equal(everything.held_out, quarter.held_out)
    assert torch.isin(few.unlabelled, everything.unlabelled).all()
    # Drawn at random, not the first ones: the mean position is 25,000 with a standard error of 200.
    assert abs(few.unlabelled.double().mean().item() - 25_000) < 1000


@pytest.mark.parametrize(
    "split",
    [
        lambda seed: hold_out(CIFAR10_LABELS, seed=seed).held_out,
        lambda seed: balanced_sample(CIFAR10_LABELS, 95, seed=seed),
        lambda seed: semi_supervised_split(CIFAR10_LABELS, 4000, seed=seed).held_out,
    ],
)
def test_the_seed_and_nothing_else_decides(split):
    first = split(1)
    torch.manual_seed(99)
    assert torch.equal(split(1), first)
    assert torch.equal(split(seeds.generator(1)), first)
    assert not torch.equal(split(2), first)


def test_a_generator_moves_on_from_draw_to_draw():
    generator = torch.Generator().manual_seed(0)
    first, second = (balanced_sample(CIFAR10_LABELS, 100, generator) for _ in range(2))
    assert not torch.equal(first, second)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.data())
def test_held_out_classes_keep_their_proportions_within_one(counts, data):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    size = data.draw(st.integers(1, len(labels) - 1))
    split = hold_out(labels, size, seed=data.draw(st.integers(0, 5)))
    assert_partition(len(labels), split.training, split.held_out)
    got = labels[split.held_out].bincount(minlength=len(counts))
    share = size * torch.tensor(counts) / len(labels)
    assert len(split.held_out) == size
    assert ((got - share).abs() < 1 + 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(4, 12), st.data())
def test_balanced_samples_differ_by_one_at_most(classes, per_class, data):
    labels = torch.arange(classes).repeat(per_class)
    size = data.draw(st.integers(1, len(labels)))
    chosen = balanced_sample(labels, size, seed=data.draw(st.integers(0, 5)))
    counts = labels[chosen].bincount(minlength=classes)
    assert len(chosen.unique()) == size
    assert counts.max() - counts.min() <= 1


def test_every_sample_of_a_class_is_equally_likely():
    labels = torch.arange(2).repeat(10)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([balanced_sample(labels, 4, generator) for _ in range(2000)]).bincount(minlength=20)
    # 2,000 draws of 2 in 10: mean 400, standard deviation 18.
    assert (drawn - 400).abs().max() < 5 * 18


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: hold_out(y, 30), r"size must be in 1\.\.29 for 30 samples, got 30"),
        (lambda y: hold_out(y, 0), r"size must be in 1\.\.29 for 30 samples, got 0"),
        (lambda y: balanced_sample(y, 31), r"size must be in 1\.\.30 for 30 samples, got 31"),
        (lambda y: balanced_sample(y[:-5], 25), r"size=25 asks for \d+ samples of class \d, which has \d"),
        (lambda y: semi_supervised_split(y, 9, held_out_fraction=1.0), r"held_out_fraction must be in .*, got 1\.0"),
        (lambda y: semi_supervised_split(y, 9, held_out_fraction=-0.1), r"held_out_fraction must be in .*, got -0\.1"),
        (lambda y: semi_supervised_split(y, 1, held_out_fraction=0.6), r"=0\.6 leaves none of 1 labels"),
        (lambda y: semi_supervised_split(y, 0), r"size must be in 1\.\.30 for 30 samples, got 0"),
        (lambda y: semi_supervised_split(y, 9, unlabelled=-1), r"unlabelled must be in 0\.\.21 beside 9 .*, got -1"),
        (lambda y: semi_supervised_split(y, 9, unlabelled=22), r"unlabelled must be in 0\.\.21 beside 9 .*, got 22"),
        (lambda y: hold_out(y.float(), 3), r"labels must be a non-empty int64 tensor \(N,\).* got torch.float32"),
        (lambda y: hold_out(y - 1, 3), r"labels must be .* without negative values"),
        (lambda y: balanced_sample(y.view(5, 6), 3), r"labels must be .* tensor \(N,\).* of shape \(5, 6\)"),
        (lambda y: balanced_sample(y[0], 3), r"labels must be .* tensor \(N,\).* of shape \(\)"),
    ],
)
def test_impossible_requests_say_what_is_possible(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.arange(3).repeat_interleave(10))
