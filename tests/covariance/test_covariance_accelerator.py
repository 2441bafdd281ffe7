"""What updates ask of a device: nothing, but for a look whether every class has been seen, once in a while."""

from __future__ import annotations

import copy

import pytest
import torch
from covariance_cases import A, C

from isda import ISDALoss, covariance
from isda._utils.devices import READ_EVERY
from pretend_accelerator import on_pretend


def waits_of_updates(model, targets: list[list[int]], accelerator) -> list[int]:
    """How often the host waits in each update."""
    counts = []
    for labels in targets:
        features, classes = on_pretend(torch.randn(len(labels), A)), on_pretend(torch.tensor(labels))
        accelerator.clear()
        model.update(features, classes)
        counts.append(len(accelerator.waits))
    return counts


@pytest.mark.parametrize("name", ["full", "diagonal", "shared", "within", "shrunk"])
def test_while_classes_are_missing_the_device_is_asked_every_hundredth_time(name, accelerator):
    with accelerator:
        model = covariance.create(name, C, A, device="pretend")
        model.validate = False
        waits = waits_of_updates(model, [[0, 1]] * (READ_EVERY + 2), accelerator)
    looks = [number for number, count in enumerate(waits, 1) if count]
    assert looks == ([1, 1 + READ_EVERY] if name != "shared" else [1])


def test_once_every_class_is_seen_the_device_is_asked_no_more(accelerator):
    with accelerator:
        model = covariance.create("full", C, A, device="pretend")
        model.validate = False
        waits = waits_of_updates(model, [list(range(C))] * (READ_EVERY + 2), accelerator)
        assert [number for number, count in enumerate(waits, 1) if count] == [1]
        model.reset()  # now they are missing again
        waits = waits_of_updates(model, [[0, 1]] * 2, accelerator)
        assert waits == [1, 0]


@pytest.mark.parametrize("rows", [2, 5 * C])  # fewer than classes, and more
@pytest.mark.parametrize("name", ["full", "shared", "diagonal", "within", "shrunk"])
def test_draws_on_a_device_are_those_of_the_cpu(name, rows, accelerator):
    features, labels = torch.randn(60, A, dtype=torch.float64), torch.arange(60) % C
    model = covariance.create(name, C, A, dtype=torch.float64)
    model.update(features, labels)
    targets = torch.arange(rows) * 2 % C
    torch.manual_seed(1)
    expected = model.sample(targets, 3)
    with accelerator:
        there = covariance.create(name, C, A, dtype=torch.float64, device="pretend")
        there.load_state_dict({key: on_pretend(value) for key, value in model.state_dict().items()})
        torch.manual_seed(1)
        draws = there.sample(on_pretend(targets), 3).cpu()
    torch.testing.assert_close(draws, expected, rtol=1e-9, atol=1e-9)


def consistency_of(criterion: ISDALoss, place) -> torch.Tensor:
    logits = torch.randn(6, C, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(C, A, generator=torch.Generator().manual_seed(2))
    return criterion.consistency(place(logits), weight=place(weight), strength=0.5).cpu()


@pytest.mark.parametrize("move", ["to another device and back", "double and float", "deepcopy", "assigned state"])
@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank", "shared", "within", "shrunk"])
def test_a_criterion_that_was_moved_after_it_learnt_uses_its_own_counts(name, move, accelerator):
    """The scale 1 / n that an update leaves on the device belongs to one buffer of counts in one state."""
    settings = {"rank": 2} if name == "low_rank" else {}
    batches = [(torch.randn(4 * C, A) + step, torch.arange(4 * C) % C) for step in range(3)]
    expected = ISDALoss(C, A, 0.5, covariance=name, schedule="constant", **settings)
    for features, labels in batches:
        expected.covariance.update(features, labels)
    once = copy.deepcopy(expected)
    expected.covariance.merge(once.covariance)
    with accelerator:
        criterion = ISDALoss(C, A, 0.5, covariance=name, device="pretend", schedule="constant", **settings)
        for features, labels in batches:
            criterion.covariance.update(on_pretend(features), on_pretend(labels))
        consistency_of(criterion, on_pretend)  # from here on the scale is known
        twin = copy.deepcopy(criterion)
        if move == "to another device and back":
            criterion.to("cpu").to("pretend")
        elif move == "double and float":
            criterion.double().float()
        elif move == "deepcopy":
            criterion = copy.deepcopy(criterion)
        else:
            state = {key: value.clone() for key, value in criterion.state_dict().items()}
            criterion.load_state_dict(state, assign=True)
        torch.testing.assert_close(consistency_of(criterion, on_pretend), consistency_of(once, torch.clone))
        criterion.covariance.merge(twin.covariance)  # as many features again: the scale is another one
        torch.testing.assert_close(consistency_of(criterion, on_pretend), consistency_of(expected, torch.clone))


def test_a_scale_follows_statistics_that_become_wider(accelerator):
    with accelerator:
        model = covariance.create("diagonal", C, A, device="pretend")
        model.update(on_pretend(torch.randn(4 * C, A)), on_pretend(torch.arange(4 * C) % C))
        assert model.double().scale.dtype == torch.float64
