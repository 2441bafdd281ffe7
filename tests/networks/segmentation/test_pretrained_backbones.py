"""Pretrained backbones: torchvision's weights give torchvision's maps; what does not fit is refused by name."""

import math

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from isda.lab.networks import segmentation


def maps_of(model, images):
    """Torchvision's last two maps, in its own words."""
    maps = model.maxpool(model.relu(model.bn1(model.conv1(images))))
    middle = model.layer3(model.layer2(model.layer1(maps)))
    return middle, model.layer4(middle)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=3).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    return model


@pytest.fixture(params=["weights.safetensors", "weights.pth"])
def file(request, model, tmp_path):
    path = tmp_path / request.param
    (save_file if path.suffix == ".safetensors" else torch.save)(model.state_dict(), path)
    return path


def test_a_file_under_torchvisions_names_gives_torchvisions_maps(file, model):
    network = segmentation.create("pspnet-resnet-18", 5, output_stride=32, pretrained=file).eval()
    images = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        for ours, theirs in zip(network.backbone(images), maps_of(model, images), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_the_whole_of_torchvisions_network_is_there_but_the_classifier():
    with torch.device("meta"):
        for depth in (18, 34, 50, 101):
            theirs = torchvision.models.get_model(f"resnet{depth}").state_dict()
            ours = segmentation.create(f"pspnet-resnet-{depth}", 2, stem="torchvision").backbone.state_dict()
            assert {name: tensor.shape for name, tensor in ours.items()} == {
                name: tensor.shape for name, tensor in theirs.items() if not name.startswith("fc.")
            }


def test_torchvisions_own_weights_are_taken_from_its_cache(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    cached = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    cached.parent.mkdir(parents=True)
    torch.save(model.state_dict(), cached)
    network = segmentation.create("deeplab-v3-resnet-18", 5, pretrained="torchvision")
    assert torch.equal(network.backbone.conv1.weight, model.conv1.weight)


def test_weights_of_a_deep_and_narrow_backbone_come_back(tmp_path):
    options = {"width": 0.25, "stem": "deep"}
    trained = segmentation.create("pspnet-resnet-18", 5, **options).backbone.state_dict()
    torch.save({name: tensor for name, tensor in trained.items() if "num_batches" not in name}, tmp_path / "old.pth")
    network = segmentation.create("deeplab-v3-resnet-18", 7, pretrained=tmp_path / "old.pth", **options)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in network.backbone.state_dict().items())


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda state: state, {"stem": "deep"}, "for the stem 'deep', got weights for the other stem"),
        (lambda state: state, {"width": 0.5}, r"conv1.weight is \(64, 3, 7, 7\), not \(32, 3, 7, 7\)"),
        (lambda state: {"conv1.weight": state["conv1.weight"]}, {}, "lacks 99 of 100, the first of them bn1.weight"),
        (lambda state: state | {"neck.weight": torch.ones(1)}, {}, "which has no neck.weight"),
        (
            lambda state: state | {"bn1.bias": state["bn1.bias"] * math.nan},
            {},
            "finite weights, but bn1.bias has 64 NaN",
        ),
        (lambda state: state | {"bn1.bias": state["bn1.bias"].long()}, {}, "floating-point weights, but bn1.bias is"),
        (lambda state: {"weights": state}, {}, "must hold named tensors, got dict"),
        (lambda state: [1, 2], {}, "must hold named tensors, got list"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, options, message, model, tmp_path):
    torch.save(change(model.state_dict()), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=message):
        segmentation.create("pspnet-resnet-18", 5, pretrained=tmp_path / "weights.pth", **options)


class Surprise:
    """Something whose unpickling runs code."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_of_something_else_is_refused_and_not_executed(name, tmp_path, capsys):
    torch.save(Surprise(), tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read as weights"):
        segmentation.create("pspnet-resnet-18", 5, pretrained=tmp_path / name)
    assert "executed" not in capsys.readouterr().out


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the weights .*no\.pth are not a file"):
        segmentation.create("pspnet-resnet-18", 5, pretrained=tmp_path / "no.pth")
