"""What holds for every network, and what `networks.create` accepts and refuses."""

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from isda.lab import networks
from isda.lab.networks.registry import IMAGENET

CLASSES = 7
OF_THE_PAPER = [
    *("resnet-32", "resnet-110", "se-resnet-110", "wide-resnet-16-8", "wide-resnet-28-10", "resnext-29-8x64d"),
    *("densenet-bc-100-12", "shake-shake-26-2x32d", "shake-shake-26-2x112d", "cnn-13", "resnet-50", "resnet-101"),
    *("resnet-152", "densenet-121", "densenet-265", "resnext-50-32x4d", "resnext-101-32x8d"),
]


@pytest.fixture(scope="module", params=[*networks.names(), "torchvision:shufflenet_v2_x0_5"])
def case(request):
    name = request.param
    torch.manual_seed(0)
    options = {} if ":" in name or name in ("resnet-8", "fast-cnn", "resnet-50") else {"width": 0.5}
    network = networks.create(name, num_classes=CLASSES, **options)
    # The smallest size that leaves several positions in the last maps; a gate with one hidden unit is off for about
    # half of the images: take enough of them.
    side, samples = 64 if name in IMAGENET or ":" in name else 16, 16 if name.startswith("se-") else 2
    return network, torch.randn(samples, 3, side, side)


def test_logits_are_the_classifier_of_the_features_and_follow_from_the_image(case):
    network, images = case
    network.eval()
    with torch.no_grad():
        features, logits, again = network.features(images), network(images), network(images)
    assert features.shape == (len(images), network.feature_dim)
    torch.testing.assert_close(logits, features @ network.classifier.weight.T + network.classifier.bias)
    assert logits.shape == (len(images), CLASSES)
    assert torch.equal(logits, again)
    assert not torch.equal(logits[0], logits[1])


def test_the_gradient_reaches_every_parameter(case):
    network, images = case
    network.train()
    network.zero_grad()
    cross_entropy(network(images), torch.arange(len(images)) % CLASSES).backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_the_classifier_is_the_last_layer_and_the_only_linear_one(case):
    network, _ = case
    assert [module for module in network.modules() if isinstance(module, nn.Linear)] == [network.classifier]
    assert list(network.modules())[-1] is network.classifier is network.get_classifier()


def test_every_network_of_the_paper_is_there():
    assert set(OF_THE_PAPER) <= set(networks.names())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wide-resnet-28-1", {}, "unknown network 'wide-resnet-28-1'; did you mean 'wide-resnet-28-10'"),
        ("qqq", {}, r"unknown network 'qqq'; known are resnet-8, .*, timm:NAME and torchvision:NAME"),
        ("timm:test_resnt", {}, "timm has no model 'test_resnt'; did you mean 'test_resnet'"),
        ("torchvision:resnet19", {}, "torchvision has no classifier 'resnet19'; did you mean 'resnet1"),
        ("timm:test_resnet", {"wings": 2}, r"timm:test_resnet does not take the options \['wings'\]: .*'wings'"),
        ("wide-resnet-10-2", {"droput": 0.3}, "has no option 'droput'; did you mean 'dropout'"),
        ("resnext-29-8x64d", {"dropout": 0.3}, "has no option 'dropout'; it takes in_channels"),
        ("resnet-20", {"depth": 32}, "resnet-20 has no option 'depth'"),
        ("resnet-8", {"num_classes": 0}, "num_classes must be an integer"),
        ("resnet-8", {"in_channels": -1}, "in_channels must be an integer"),
        ("resnet-8", {"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ("resnet-8", {"dropout": "much"}, r"dropout must be a number in \[0, 1\), got 'much'"),
        ("resnet-8", {"width": 0}, "width must be a positive number, got 0"),
        ("resnet-8", {"width": float("nan")}, "width must be a positive number, got nan"),
    ],
)
def test_what_cannot_be_built_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        networks.create(name, **({"num_classes": 10} | options))


@pytest.mark.parametrize(("name", "side"), [("resnet-20", 8), ("fast-cnn", 8), ("cnn-13", 12), ("resnet-50", 64)])
def test_grey_images_work(name, side):
    network = networks.create(name, num_classes=10, in_channels=1).eval()
    assert network(torch.zeros(4, 1, side, side)).shape == (4, 10)


@pytest.mark.parametrize(
    ("name", "feature_dim"),
    [("resnet-20", 32), ("cnn-13", 64), ("wide-resnet-10-2", 64), ("resnext-29-8x64d", 512), ("densenet-121", 512)],
)
def test_half_the_width_makes_half_the_features_and_about_a_quarter_of_the_parameters(name, feature_dim):
    full, half = (networks.create(name, num_classes=10, width=width) for width in (1.0, 0.5))
    assert half.feature_dim == feature_dim == full.feature_dim // 2
    assert 0.2 < networks.count_parameters(half) / networks.count_parameters(full) < 0.32


def test_every_network_can_be_a_sixteenth_as_wide():
    for name in networks.names():
        narrow = networks.create(name, num_classes=10, width=0.0625).eval()
        assert narrow(torch.zeros(1, 3, 32, 32)).shape == (1, 10), name


def test_a_frozen_body_stays_as_it_is():
    network = networks.create("resnet-8", num_classes=3)
    network.freeze_body()
    before = {name: value.clone() for name, value in network.body.state_dict().items()}
    network.train()(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in network.body.state_dict().items())
    assert {name for name, value in network.named_parameters() if value.grad is not None} == {
        "classifier.weight",
        "classifier.bias",
    }


@pytest.mark.parametrize(
    ("name", "size"), [("test_resnet", 32), ("test_vit", 160), ("test_convnext", 64), ("resnetv2_18", 32)]
)
def test_logits_of_timm_models_are_those_of_timm(name, size):
    original = timm.create_model(name, num_classes=7).eval()
    network = networks.create(f"timm:{name}", num_classes=7).eval()
    # Classifiers that start at zero would make any two networks agree.
    for parameter, other in zip(original.parameters(), network.parameters(), strict=True):
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
            other.copy_(parameter.view_as(other))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(network(images), original(images))


def test_a_timm_model_that_ends_otherwise_gets_one_linear_classifier():
    assert isinstance(networks.create("timm:resnetv2_18", num_classes=7).classifier, nn.Linear)
    two_heads = networks.create("timm:deit_tiny_distilled_patch16_224", num_classes=7, depth=1).eval()
    assert two_heads(torch.zeros(1, 3, 224, 224)).shape == (1, 7)


def test_options_go_to_timm():
    network = networks.create("timm:test_resnet", num_classes=7, in_channels=1, drop_rate=0.25)
    assert network.body.drop_rate == pytest.approx(0.25)
    assert network.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 7)
