"""Dropout: where it acts, at which rate, and that it is off in evaluation."""

import pytest
import torch
from torch import nn

from isda.lab import networks

FAMILIES = ["resnet-8", "fast-cnn", "wide-resnet-10-2", "densenet-bc-40-12", "cnn-13", "densenet-121"]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    """The same weights with dropout and without, and images for them."""
    name = request.param
    torch.manual_seed(0)
    with_dropout = networks.create(name, num_classes=10, dropout=0.3)
    without = networks.create(name, num_classes=10, dropout=0.0)
    without.load_state_dict(with_dropout.state_dict())
    size = 64 if name == "densenet-121" else 16
    return with_dropout, without, torch.randn(2, 3, size, size)


def test_training_draws_afresh(pair):
    network, _, images = pair
    network.train()
    with torch.no_grad():
        assert not torch.equal(network(images), network(images))


def test_without_dropout_training_repeats_itself(pair):
    _, network, images = pair
    network.train()
    with torch.no_grad():
        assert torch.equal(network(images), network(images))


def test_evaluation_is_as_without_dropout(pair):
    with_dropout, without, images = pair
    # The training passes of the other tests move the running statistics.
    without.load_state_dict(with_dropout.state_dict())
    with torch.no_grad():
        assert torch.equal(with_dropout.eval()(images), without.eval()(images))


@pytest.mark.parametrize(("name", "places"), [("resnet-8", 3), ("wide-resnet-10-2", 3), ("cnn-13", 2)])
def test_values_are_muted_at_the_given_rate_and_the_rest_scaled(name, places):
    torch.manual_seed(0)
    network = networks.create(name, num_classes=10, dropout=0.3).train()
    seen = []
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        network(torch.randn(8, 3, 16, 16))
    assert len(seen) == places
    for before, after in seen:
        active, kept = before != 0, after != 0
        assert 1 - kept.sum() / active.sum() == pytest.approx(0.3, abs=0.03)
        torch.testing.assert_close(after[kept], before[kept] / 0.7)


def test_dropout_in_a_residual_block_lies_between_its_two_convolutions():
    for name in ("resnet-8", "wide-resnet-10-2"):
        network = networks.create(name, num_classes=10, dropout=0.3)
        for block in (network.body.stage1[0], network.body.stage3[0]):
            kinds = [type(layer) for layer in block.residual if isinstance(layer, nn.Conv2d | nn.Dropout)]
            assert kinds == [nn.Conv2d, nn.Dropout, nn.Conv2d]


@pytest.mark.parametrize(
    ("name", "options", "rate"),
    [
        ("wide-resnet-28-10", {}, 0.3),
        ("wide-resnet-28-10", {"dropout": 0.0}, 0.0),
        ("wide-resnet-16-8", {}, 0.0),
        ("resnet-110", {}, 0.0),
        ("cnn-13", {}, 0.5),
    ],
)
def test_the_rate_is_the_papers_unless_told_otherwise(name, options, rate):
    with torch.device("meta"):
        network = networks.create(name, num_classes=10, **options)
    assert {module.p for module in network.modules() if isinstance(module, nn.Dropout)} == {rate}
