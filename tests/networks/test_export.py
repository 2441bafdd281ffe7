"""Exported weights give torchvision's and timm's own networks the outputs of ours."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn
from torchvision import models

from isda.lab import networks
from isda.lab.networks.export import export, export_state
from isda.lab.networks.registry import IMAGENET

TORCHVISION = {name: name.replace("-", "", 1).replace("-", "_") for name in IMAGENET if name != "densenet-265"}


def trained(name: str) -> networks.Network:
    """Random weights, with running figures that are not those of a new network."""
    network = networks.create(name, num_classes=7)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
    return network.eval()


@pytest.mark.parametrize("name", ["resnet-50", "resnext-50-32x4d", "densenet-121"])
def test_outputs_are_equal(name, tmp_path):
    network, images = trained(name), torch.rand(2, 3, 64, 64)
    export(network, name, "torchvision", tmp_path / "weights.pth")
    export(network, name, "timm", tmp_path / "weights.safetensors")
    torchvisions = models.get_model(TORCHVISION[name], num_classes=7)
    torchvisions.load_state_dict(torch.load(tmp_path / "weights.pth", weights_only=True))
    timms = timm.create_model(TORCHVISION[name], num_classes=7)
    timms.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    with torch.no_grad():
        for theirs in (torchvisions, timms):
            torch.testing.assert_close(theirs.eval()(images), network(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet-101", "resnet-152", "resnext-101-32x8d"])
def test_names_and_shapes_are_those_of_the_libraries(name, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: tensor)  # tensors of the meta device have no values
    with torch.device("meta"):
        network = networks.create(name, num_classes=7)
        others = [make(TORCHVISION[name], num_classes=7) for make in (models.get_model, timm.create_model)]
    mine = {key: value.shape for key, value in export_state(network, name, "torchvision").items()}
    for other in others:
        assert mine == {key: value.shape for key, value in other.state_dict().items()}


def test_mmdetection_gets_the_backbone_alone():
    network = trained("resnet-50")
    weights = export_state(network, "resnet-50", "mmdetection")
    with torch.device("meta"):
        expected = {key for key in models.get_model("resnet50").state_dict() if not key.startswith("fc.")}
    assert set(weights) == expected
    assert weights["layer4.2.bn3.running_var"].shape == (2048,)


@pytest.mark.parametrize(
    ("name", "library", "sentence"),
    [
        ("resnet-8", "timm", "timm has no network resnet-8; there are resnet-50"),
        ("resnet-50", "keras", "library must be one of torchvision, timm, mmdetection, got 'keras'"),
        ("densenet-121", "mmdetection", "MMDetection has no DenseNets"),
    ],
)
def test_what_a_library_does_not_have(name, library, sentence):
    with torch.device("meta"):
        network = networks.create(name, num_classes=2)
    with pytest.raises(ValueError, match=sentence):
        export_state(network, name, library)
