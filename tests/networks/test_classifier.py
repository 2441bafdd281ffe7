"""The classifier by timm's convention: `get_classifier` names it, `reset_classifier` replaces it."""

import copy
import pickle

import pytest
import torch
from torch import nn

from isda import ISDALoss
from isda.attach import find_classifier
from isda.lab import networks

SMALL = ["resnet-8", "wide-resnet-10-2", "densenet-bc-40-12", "cnn-13", "fast-cnn", "timm:test_resnet"]


@pytest.mark.parametrize("name", SMALL)
def test_the_classifier_is_the_one_that_attach_finds(name):
    network = networks.create(name, num_classes=7)
    assert network.get_classifier() is network.classifier is find_classifier(network)


@pytest.mark.parametrize("name", SMALL)
def test_another_classifier_reads_the_same_features(name):
    network = networks.create(name, num_classes=7).eval()
    images, feature_dim, old = torch.randn(2, 3, 32, 32), network.feature_dim, network.classifier
    with torch.no_grad():
        features = network.features(images)
        network.reset_classifier(4)
        assert torch.equal(network.features(images), features)
        assert torch.equal(network(images), network.classifier(features))
    assert network.classifier is not old
    assert network.feature_dim == feature_dim
    assert network(images).shape == (2, 4)
    assert list(network.state_dict())[-2:] == ["classifier.weight", "classifier.bias"]


@pytest.mark.parametrize(
    ("name", "starts_at_zero"),
    [("resnet-8", True), ("cnn-13", True), ("densenet-121", True), ("resnet-50", False)],
)
def test_a_new_classifier_starts_as_one_of_its_family(name, starts_at_zero):
    with torch.device("meta"):
        network = networks.create(name, num_classes=500)
    classifier = networks.create(name, num_classes=500).classifier
    network.classifier = copy.deepcopy(classifier)
    network.reset_classifier(500)
    for layer in (classifier, network.classifier):
        assert (layer.bias == 0).all() == starts_at_zero
    assert network.classifier.weight.std().item() == pytest.approx(classifier.weight.std().item(), rel=0.05)
    assert not torch.equal(network.classifier.weight, classifier.weight)


def test_device_dtype_mode_and_lack_of_a_bias_are_kept():
    network = networks.create("resnet-8", num_classes=7)
    network.classifier = nn.Linear(64, 7, bias=False)
    network.to("meta", torch.float64).eval()
    network.reset_classifier(3)
    weight = network.classifier.weight
    assert (weight.device.type, weight.dtype, weight.shape) == ("meta", torch.float64, (3, 64))
    assert network.classifier.bias is None
    assert not network.classifier.training


def test_attach_follows_a_new_classifier():
    network = networks.create("resnet-8", num_classes=7)
    network.reset_classifier(4)
    criterion = ISDALoss.attach(network, lambda_0=0.5, schedule="constant")
    images, targets = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    for _ in range(2):
        loss = criterion(network(images), targets)
    loss.backward()
    assert criterion.covariance.count.tolist() == [4, 4, 4, 4]
    assert network.classifier.weight.grad.abs().sum() > 0


def test_a_copy_can_be_reset_as_well():
    network = networks.create("resnet-8", num_classes=7)
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        twin.reset_classifier(3)
        assert twin.classifier.out_features == 3
        assert (twin.classifier.bias == 0).all()
    assert network.classifier.out_features == 7


@pytest.mark.parametrize("number", [0, -1, 2.0, True])
def test_a_number_of_classes_that_cannot_be_changes_nothing(number):
    network = networks.create("resnet-8", num_classes=7)
    old = network.classifier
    with pytest.raises(ValueError, match=f"num_classes must be an integer of at least 1, got {number}"):
        network.reset_classifier(number)
    assert network.classifier is old
