"""What is drawn for an image follows from its key alone."""

from __future__ import annotations

import torch

from isda.lab.networks.detection.proposals import KeyedSampler, image_keys

LABELS = torch.tensor([1, 0, 2, 0, 0, -1, 3, 0, 1, 0, 0])


def drawn(keys, labels, purpose=1):
    sampler = KeyedSampler(6, 0.5, purpose)
    sampler.keys = keys
    return [one + 2 * two for one, two in zip(*sampler(labels), strict=True)]


def test_as_many_as_asked_for_and_at_most_the_fraction_positive():
    (one,) = drawn([3], [LABELS])
    assert (one == 1).sum() == 3
    assert (one == 2).sum() == 3
    assert (LABELS[one == 1] > 0).all()
    assert (LABELS[one == 2] == 0).all()


def test_few_positives_leave_room_for_negatives_and_few_candidates_are_all_taken():
    (one,) = drawn([3], [torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])])
    assert ((one == 1).sum(), (one == 2).sum()) == (1, 5)
    (one,) = drawn([3], [torch.tensor([1, 0, -1])])
    assert one.tolist() == [1, 2, 0]


def test_neighbours_do_not_matter_and_keys_and_purposes_do():
    many = torch.cat([LABELS] * 5)
    alone, together = drawn([5], [many])[0], drawn([4, 5], [LABELS, many])[1]
    assert torch.equal(alone, together)
    assert not torch.equal(alone, drawn([6], [many])[0])
    assert not torch.equal(alone, drawn([5], [many], purpose=2)[0])


def test_every_candidate_is_as_likely():
    counts = torch.zeros(len(LABELS))
    for key in range(1000):
        counts += drawn([key], [LABELS])[0] > 0
    positive, negative = counts[LABELS > 0], counts[LABELS == 0]
    torch.testing.assert_close(positive, torch.full_like(positive, 1000 * 3 / 4), rtol=0.06, atol=0)
    torch.testing.assert_close(negative, torch.full_like(negative, 1000 * 3 / 6), rtol=0.1, atol=0)


def test_without_keys_the_global_generator_draws():
    torch.manual_seed(0)
    first = drawn(None, [LABELS])[0]
    torch.manual_seed(0)
    assert torch.equal(first, drawn(None, [LABELS])[0])
    assert image_keys(None) is image_keys([{"boxes": 1}]) is None
    assert image_keys([{"key": 2}]) == [2]
