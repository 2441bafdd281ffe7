"""A loop with an Accelerator against a plain loop over the same batches."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from accelerate import Accelerator
from accelerate_runs import CLASSES, LAMBDA_0, accelerated, network, plain_loop, samples
from states import EXACT, largest_difference
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDABCELoss, ISDALoss
from isda.integrations.accelerate import prepare_criterion

RUN = {"size": 38, "batch_size": 4, "accumulation": 4}
"""Ten batches per epoch, the last of two samples, in steps of four, four and two."""


@pytest.mark.parametrize(
    "settings",
    [{}, {"covariance": "diagonal", "bound": "tilted"}, {"class_weight": torch.tensor([1.0, 2.0, 0.5]).double()}],
    ids=["full", "diagonal-tilted", "weighted"],
)
@pytest.mark.usefixtures("float64")
def test_it_trains_like_a_plain_loop_over_the_same_batches(settings):
    model, criterion = accelerated(**RUN, epochs=[0, 1], total_steps=6, **settings)
    expected, statistics = plain_loop(**RUN, epochs=2, **settings)
    assert largest_difference(model, expected) < EXACT
    assert largest_difference(criterion.covariance, statistics.covariance) < EXACT
    assert criterion.step == 6
    without, _ = plain_loop(**RUN, epochs=2, lambda_0=0.0, **settings)
    assert largest_difference(model, without) > 1e-3, "the augmentation changed nothing"


def test_an_interrupted_training_ends_in_the_same_bits(tmp_path):
    model, criterion = accelerated(**RUN, epochs=[0, 1], total_steps=6)
    accelerated(**RUN, epochs=[0], total_steps=6, save=tmp_path)
    resumed, statistics = accelerated(**RUN, epochs=[1], total_steps=6, load=tmp_path)
    assert largest_difference(model, resumed) == 0
    assert largest_difference(criterion, statistics) == 0


def test_only_the_last_batch_of_a_step_moves_the_strength():
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = accelerator.prepare(network())
    criterion = prepare_criterion(accelerator, ISDALoss.attach(model, LAMBDA_0, 6))
    x, y = samples(12)[:]
    steps = []
    for _ in range(7):
        with accelerator.accumulate(model):
            criterion(model(x), y)
            steps.append(criterion.step)
    assert steps == [0, 0, 1, 1, 1, 2, 2]
    criterion(model(x), y, strength=0.1)
    assert criterion.step == 2


def test_evaluation_is_cross_entropy_and_changes_nothing():
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = accelerator.prepare(network())
    criterion = prepare_criterion(accelerator, ISDALoss.attach(model, LAMBDA_0, 6))
    x, y = samples(12)[:]
    with accelerator.accumulate(model):
        criterion(model(x), y)
    before = copy.deepcopy(criterion.state_dict())
    with torch.no_grad():
        assert torch.equal(criterion.eval()(model.eval()(x), y), nn.functional.cross_entropy(model(x), y))
        assert torch.equal(criterion.train()(model(x), y), nn.functional.cross_entropy(model(x), y))
    assert largest_difference(before, criterion) == 0


def automatic_loop(epochs, matched=True, lambda_0="auto", **settings):
    """The lines that docs/accelerate.md has for lambda_0="auto", with the strength after each epoch."""
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(samples(24), batch_size=4)
    x, y = samples(24)[12:]
    y[0] = 2  # was 0: the held-out loss is larger than that in training
    held_out = DataLoader(TensorDataset(x, y), batch_size=5)
    model, optimiser, loader, held_out = accelerator.prepare(model, optimiser, loader, held_out)
    criterion = prepare_criterion(accelerator, ISDALoss.attach(model, lambda_0, **settings))
    strengths = []
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(criterion(model(x), y))
                optimiser.step()
                optimiser.zero_grad()
        if matched:
            criterion.match(held_out)
        strengths.append(criterion.strength)
    return strengths, criterion


def test_auto_is_matched_to_a_prepared_loader():
    strengths, criterion = automatic_loop(3)
    assert len(criterion.schedule.solutions) == 3
    assert strengths[-1] > 0
    assert criterion.step == 9


def strength_warnings(*args, **settings):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        automatic_loop(*args, **settings)
    return [text for text in (str(warning.message) for warning in seen) if "epoch" in text or "total_steps" in text]


def test_a_strength_that_stays_at_0_is_warned_of_once():
    (text,) = strength_warnings(3, matched=False)
    assert "because no evaluation has set it; call criterion.match(held_out_loader) at the end of each epoch" in text
    assert strength_warnings(3) == []
    assert strength_warnings(3, matched=False, lambda_0=LAMBDA_0, total_steps=9) == []


def test_several_labels_per_sample():
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = accelerator.prepare(network())
    criterion = prepare_criterion(accelerator, ISDABCELoss.attach(model, LAMBDA_0, 6))
    x, y = samples(12)[:]
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(criterion(model(x), nn.functional.one_hot(y, CLASSES).float()))
    assert criterion.step == 2


def test_statistics_and_class_weights_go_where_the_accelerator_computes(accelerator):
    """A model that was attached before it was put on the device."""
    loop = Accelerator(cpu=True)
    model = network()
    criterion = ISDALoss.attach(model, LAMBDA_0, 6, class_weight=torch.tensor([1.0, 2.0, 0.5]))
    with accelerator:
        loop.state.device = torch.device("pretend")
        try:
            prepare_criterion(loop, criterion)
        finally:
            loop.state.device = torch.device("cpu")
        assert {buffer.device.type for buffer in criterion.buffers()} == {"pretend"}


def test_a_prepared_criterion_can_be_copied_and_pickled():
    model = network()
    criterion = prepare_criterion(Accelerator(cpu=True), ISDALoss.attach(model, LAMBDA_0, 6))
    criterion.detach()
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert largest_difference(twin, criterion) == 0


def test_other_criteria_are_refused():
    with pytest.raises(ValueError, match="criterion must be one of isda's, got CrossEntropyLoss"):
        prepare_criterion(Accelerator(cpu=True), nn.CrossEntropyLoss())


def test_a_criterion_is_prepared_once():
    loop = Accelerator(cpu=True)
    criterion = prepare_criterion(loop, ISDALoss.attach(network(), LAMBDA_0, 6))
    with pytest.raises(ValueError, match="criterion must be prepared only once"):
        prepare_criterion(loop, criterion)
