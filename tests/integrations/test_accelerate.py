"""A loop with an Accelerator against a plain loop over the same batches."""

import pytest
import torch
from accelerate import Accelerator
from plain_training import (
    BATCHES,
    EPOCHS,
    LAMBDA_0,
    MOMENTUM,
    RATE,
    TOLERANCE,
    difference,
    loader,
    network,
    samples,
    train_by_hand,
)

from isda import ISDALoss
from isda.integrations.accelerate import prepare_criterion


def accelerated(epochs=EPOCHS, accumulate=1, load=None, save=None, **settings):
    """Train for some epochs, from a saved state or from the start, and save the state in the end."""
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True, **settings)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader())
    criterion = prepare_criterion(accelerator, ISDALoss.attach(model, LAMBDA_0, EPOCHS * BATCHES))
    if load is not None:
        accelerator.load_state(str(load))
    for _ in range(epochs):
        for x, y in data:
            with accelerator.accumulate(model):
                accelerator.backward(criterion(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(str(save))
    criterion.detach()
    return accelerator.unwrap_model(model), criterion


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_trains_like_a_plain_loop(accumulate):
    model, criterion = accelerated(accumulate=accumulate)
    expected, statistics = train_by_hand(accumulate=accumulate)
    assert difference(model, expected) < TOLERANCE
    assert difference(criterion, statistics) < TOLERANCE
    assert criterion.strength == pytest.approx(LAMBDA_0)


def test_an_interrupted_training_ends_as_one_that_was_not(tmp_path):
    accelerated(epochs=2, save=tmp_path)
    model, criterion = accelerated(epochs=1, load=tmp_path)
    expected, statistics = train_by_hand()
    assert difference(model, expected) < TOLERANCE
    assert difference(criterion, statistics) < TOLERANCE


def test_validation_is_cross_entropy_and_changes_nothing():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(network())
    criterion = prepare_criterion(accelerator, ISDALoss.attach(model, LAMBDA_0, 6))
    x, y = samples()
    with torch.no_grad():
        assert torch.equal(criterion(model(x), y), torch.nn.functional.cross_entropy(model(x), y))
    assert criterion.step == 0


def test_statistics_and_class_weights_go_where_the_accelerator_computes(accelerator):
    """A model that was attached before it was put on the device."""
    loop = Accelerator(cpu=True)
    criterion = ISDALoss.attach(network(), LAMBDA_0, 6, class_weight=torch.tensor([1.0, 2.0, 0.5]))
    with accelerator:
        loop.state.device = torch.device("pretend")
        try:
            prepare_criterion(loop, criterion)
        finally:
            loop.state.device = torch.device("cpu")
        assert {buffer.device.type for buffer in criterion.buffers()} == {"pretend"}
