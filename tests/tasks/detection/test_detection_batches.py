"""Batches of images with objects: mirrored as wholes, taken up anywhere, shared out among processes."""

from __future__ import annotations

import pytest
import torch

from isda.lab.data.coco import load
from isda.lab.tasks.detection.data import DetectionBatches, mirrored


@pytest.fixture(scope="module")
def part(shapes_set):
    return load(shapes_set).train


def made(part, **changes):
    return DetectionBatches(**({"part": part, "masks": True, "batch_size": 3, "seed": 5} | changes))


def same(one, two):
    assert all(torch.equal(a, b) for a, b in zip(one.images, two.images, strict=True))
    for mine, theirs in zip(one.targets, two.targets, strict=True):
        assert mine["key"] == theirs["key"]
        assert mine["batch_sizes"] == theirs["batch_sizes"]
        assert all(torch.equal(mine[key], theirs[key]) for key in ("boxes", "labels", "masks"))


def test_an_image_is_mirrored_with_its_boxes_and_masks(part):
    image, target = part.image(0), part.target(0, masks=True)
    other, changed = mirrored(image, target)
    assert torch.equal(other, image.flip(2))
    for box, mask in zip(changed["boxes"], changed["masks"], strict=True):
        rows, columns = mask.nonzero().T
        edges = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
        torch.testing.assert_close(box, edges, atol=1.5, rtol=0)
    back, again = mirrored(other, changed)
    assert torch.equal(back, image)
    torch.testing.assert_close(again["boxes"], target["boxes"])


def test_half_of_the_images_are_mirrored(part):
    batches, count = made(part, masks=False), 0
    for epoch in range(20):
        for batch in batches.epoch(epoch):
            count += sum(not any(torch.equal(image, part.image(i)) for i in range(7)) for image in batch.images)
    assert 40 < count < 80  # of 120


def test_an_epoch_is_taken_up_at_any_step(part):
    whole = list(made(part).epoch(4))
    assert len(whole) == 2
    (rest,) = made(part).epoch(4, start=1)
    same(whole[1], rest)


def test_processes_share_the_batch_of_one(part):
    (first, _), (second, _), (both, _) = (
        list(made(part, rank=rank, world=world).epoch(0)) for rank, world in ((0, 2), (1, 2), (0, 1))
    )
    assert [len(first.images), len(second.images)] == [2, 1]
    joined = type(both)(first.images + second.images, first.targets + second.targets)
    same(joined, both)
    with pytest.raises(ValueError, match="batch_size must be at least 4, the number of processes, got 3"):
        made(part, world=4)


def test_images_become_numbers_in_0_to_1(part):
    batch = next(iter(made(part).epoch(0)))
    ready = batch.to(torch.device("cpu"), torch.float64)
    assert ready.images[0].dtype == ready.targets[0]["boxes"].dtype == torch.float64
    assert 0 <= ready.images[0].min() < ready.images[0].max() <= 1
    assert ready.targets[0]["key"] == batch.targets[0]["key"]
