"""What holds for every network: shapes, the classifier on the features, gradients, determinism."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from isda.lab import networks
from isda.lab.networks.registry import IMAGENET

CLASSES = 7


def image_size(name):
    """The smallest size that leaves several positions in the last maps, so that batch statistics are not degenerate."""
    return 64 if name in IMAGENET else 16


@pytest.fixture(scope="module", params=networks.names())
def case(request):
    name = request.param
    torch.manual_seed(0)
    network = networks.create(name, num_classes=CLASSES)
    # A gate of squeeze-and-excitation with one hidden unit is off for about half of the images: take enough of them.
    samples = 16 if name.startswith("se-") else 2
    return network, torch.randn(samples, 3, image_size(name), image_size(name))


def test_logits_are_the_classifier_of_the_features(case):
    network, images = case
    network.eval()
    with torch.no_grad():
        features, logits = network.features(images), network(images)
    assert features.shape == (len(images), network.feature_dim)
    assert logits.shape == (len(images), CLASSES)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits, features @ network.classifier.weight.T + network.classifier.bias)


def test_evaluation_is_deterministic_and_depends_on_the_image(case):
    network, images = case
    network.eval()
    with torch.no_grad():
        first, second = network(images), network(images)
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_the_gradient_reaches_every_parameter(case):
    network, images = case
    network.train()
    network.zero_grad()
    cross_entropy(network(images), torch.arange(len(images)) % CLASSES).backward()
    silent = [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()]
    assert silent == []


def test_the_classifier_is_the_last_layer_and_the_only_linear_one(case):
    network, _ = case
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert linear == [network.classifier]
    assert list(network.modules())[-1] is network.classifier


def test_batch_normalisation_starts_as_the_identity(case):
    network, _ = case
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
