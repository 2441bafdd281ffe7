"""timm's models as networks: the same logits, the classifier on top."""

import pytest
import timm
import torch
from torch import nn

from isda.lab import networks


@pytest.mark.parametrize(
    ("name", "size"),
    [("test_resnet", 32), ("test_vit", 160), ("test_convnext", 64), ("resnetv2_18", 32)],
)
def test_logits_are_those_of_timm(name, size):
    torch.manual_seed(0)
    original = timm.create_model(name, num_classes=7).eval()
    torch.manual_seed(0)
    network = networks.create(f"timm:{name}", num_classes=7).eval()
    # Classifiers that start at zero would make any two networks agree.
    for parameter, other in zip(original.parameters(), network.parameters(), strict=True):
        assert parameter.numel() == other.numel()
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
            other.copy_(parameter.view_as(other))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        features = network.features(images)
        assert features.shape == (2, network.feature_dim)
        torch.testing.assert_close(network.classifier(features), original(images))
        assert torch.equal(network(images), network.classifier(features))


def test_a_convolutional_classifier_becomes_a_linear_one():
    original = timm.create_model("resnetv2_18", num_classes=7)
    assert isinstance(original.get_classifier(), nn.Conv2d)
    assert isinstance(networks.create("timm:resnetv2_18", num_classes=7).classifier, nn.Linear)


def test_a_model_with_two_classifiers_gets_one_linear_classifier():
    network = networks.create("timm:deit_tiny_distilled_patch16_224", num_classes=7).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 7)
    assert network.feature_dim == 192


def test_options_go_to_timm():
    network = networks.create("timm:test_resnet", num_classes=7, in_channels=1, drop_rate=0.25)
    assert network.body.drop_rate == 0.25
    assert network.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 7)


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(ValueError, match="timm has no model 'test_resnt'; did you mean 'test_resnet'"):
        networks.create("timm:test_resnt", num_classes=7)


def test_an_unknown_option_is_named():
    with pytest.raises(ValueError, match=r"timm:test_resnet does not take the options \['wings'\]: .*'wings'"):
        networks.create("timm:test_resnet", num_classes=7, wings=2)
