"""The maps of backbones are those that classifiers compute; weights come from wherever a classifier was trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.networks.detection import load_backbone_weights
from isda.lab.networks.detection.backbone import backbone_stages


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("resnet-8", [2, 4]),
        ("wide-resnet-10-2", [2, 4]),
        ("densenet-bc-40-12", [2, 4]),
        ("shake-shake-26-2x32d", [2, 4]),
        ("cnn-13", [2, 4]),
        ("fast-cnn", [2, 4, 8]),
        ("resnet-50", [4, 8, 16, 32]),
        ("densenet-121", [4, 8, 16, 32]),
    ],
)
def test_the_last_map_is_what_the_classifier_averages(name, strides):
    network = networks.create(name, num_classes=3).eval()
    stages = backbone_stages(network)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        maps = list(stages.body(images).values())
        last = maps[-1].relu() if name == "densenet-121" else maps[-1]
        torch.testing.assert_close(last.mean((2, 3)), network.features(images), rtol=1e-4, atol=1e-5)
    assert stages.strides == strides
    assert [one.shape[1] for one in maps] == stages.channels
    if name != "cnn-13":  # its last convolution has no padding
        assert [64 // one.shape[2] for one in maps] == strides


def test_timms_maps():
    stages = backbone_stages("timm:resnet10t")
    maps = stages.body(torch.rand(1, 3, 64, 64))
    assert [64 // one.shape[2] for one in maps] == stages.strides == [4, 8, 16, 32]
    assert [one.shape[1] for one in maps] == stages.channels
    assert stages.first(1)
    assert len(stages.first(1)) < len(stages.first(4))
    # As a run of a classifier has its weights.
    trained = {f"body.{name}": value for name, value in networks.create("timm:resnet10t", 2).body.state_dict().items()}
    load_backbone_weights(stages.body, trained, "a run")
    assert torch.equal(stages.body.state_dict()["layer4.0.conv1.weight"], trained["body.layer4.0.conv1.weight"])


def test_stages_are_frozen_only_where_they_have_an_order():
    assert backbone_stages("timm:mobilenetv3_small_050").first(0) == []
    with pytest.raises(ValueError, match="frozen_stages must be 0 for a backbone whose layers do not run one after"):
        backbone_stages("timm:mobilenetv3_small_050").first(1)


@pytest.mark.parametrize("prefix", ["", "body.", "backbone.", "module."])
def test_weights_under_any_prefix(prefix):
    trained = networks.create("fast-cnn", num_classes=3)
    for module in trained.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
    weights = {prefix + name: value for name, value in trained.body.state_dict().items()} | {"fc.weight": torch.ones(2)}
    body = backbone_stages("fast-cnn").body
    load_backbone_weights(body, weights, "a file")
    theirs = trained.body.state_dict()
    for name, value in body.state_dict().items():
        assert torch.equal(value, theirs[name])


def test_weights_that_do_not_fit():
    body = backbone_stages("fast-cnn").body
    other = backbone_stages("fast-cnn", width=0.5).body.state_dict()
    with pytest.raises(ValueError, match=r"here must fit the backbone, but stem.0.weight is \(8, 3, 3, 3\), not \(16"):
        load_backbone_weights(body, other, "here")
    with pytest.raises(ValueError, match=r"here must hold the weights .* it lacks \d+ of \d+, the first of them stem"):
        load_backbone_weights(body, {"stem": torch.ones(1)}, "here")
