"""Weights from files and for other libraries: what fits is loaded whole, what does not is named."""

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import models

from isda.lab import networks
from isda.lab.networks.export import export, export_state, write_for_timm
from isda.lab.networks.pretrained import HUB, load_pretrained, pretrained_inputs, pretrained_weights
from isda.lab.networks.registry import IMAGENET
from isda.lab.networks.weight_files import read_weights

TORCHVISION = {name: name.replace("-", "", 1).replace("-", "_") for name in IMAGENET if name != "densenet-265"}
RESNET = "timm:test_resnet"


def trained(name):
    """Random weights, with running figures that are not those of a new network."""
    network = networks.create(name, num_classes=7)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return network.eval()


@pytest.mark.parametrize("name", ["resnet-50", "resnext-50-32x4d", "densenet-121"])
def test_torchvisions_and_timms_networks_have_the_outputs_of_ours(name, tmp_path):
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


def test_mmdetection_gets_the_backbone_alone():
    weights = export_state(trained("resnet-50"), "resnet-50", "mmdetection")
    with torch.device("meta"):
        assert set(weights) == {key for key in models.get_model("resnet50").state_dict() if not key.startswith("fc.")}


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "resnetv2_18"])
def test_timm_takes_back_what_it_gave(name):
    network = networks.create(f"timm:{name}", num_classes=4).eval()
    nn.init.normal_(network.classifier.weight)
    model = timm.create_model(name, num_classes=4).eval()
    model.load_state_dict(export_state(network, f"timm:{name}", "timm", {}))
    pixels = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), network(pixels))


@pytest.mark.parametrize(
    ("name", "library", "message"),
    [
        ("resnet-8", "timm", "timm has no network resnet-8; there are resnet-50"),
        ("resnet-50", "keras", "library must be one of torchvision, timm, mmdetection, got 'keras'"),
        ("densenet-121", "mmdetection", "MMDetection has no DenseNets"),
        ("timm:deit_tiny_distilled_patch16_224", "timm", "must end in one linear layer"),
    ],
)
def test_what_a_library_does_not_have(name, library, message, tmp_path):
    network = networks.create(name, num_classes=2)
    with pytest.raises(ValueError, match=message):
        export_state(network, name, library)
    assert not write_for_timm(networks.create("resnet-8", 2), "resnet-8", {}, tmp_path / "a.safetensors", {})


def wrapped(network):
    return {f"module.{name}": value for name, value in export_state(network, RESNET, "timm").items()}


@pytest.mark.parametrize(
    "layout", [nn.Module.state_dict, wrapped, lambda network: export_state(network, RESNET, "timm")]
)
def test_names_of_timm_of_a_run_and_of_a_wrapper_are_known(layout):
    source, target = (networks.create(RESNET, num_classes=count) for count in (5, 3))
    load_pretrained(target, RESNET, layout(source), "a file")
    own = target.body.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in source.body.state_dict().items())


NOT_FINITE = r"finite weights, but conv1.0.weight has \d+ NaN or infinite values of \d+"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight * float("nan"), NOT_FINITE),
        (lambda weight: weight / 0, NOT_FINITE),
        (torch.Tensor.long, "dense floating-point weights, but conv1.0.weight is torch.strided of torch.int64"),
        (lambda weight: weight.to(torch.complex64), "torch.strided of torch.complex64"),
        (torch.Tensor.to_sparse, "torch.sparse_coo of torch.float32"),
        (lambda weight: weight[:, :1], r"fit the backbone, but conv1.0.weight is \(.*, 1, 3, 3\), not"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_loaded(change, message):
    network = networks.create(RESNET, num_classes=3)
    weights = timm.create_model("test_resnet").state_dict()
    weights["conv1.0.weight"] = change(weights["conv1.0.weight"])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ValueError, match=rf"^a\.pth must .*{message}"):
        load_pretrained(network, RESNET, weights, "a.pth")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_another_networks_file_is_refused():
    network = networks.create(RESNET, num_classes=3)
    deeper = timm.create_model("test_resnet", layers=(1, 1, 1, 2)).state_dict()
    with pytest.raises(ValueError, match=r"a\.pth must hold the weights of the backbone, which has no layer4\.1"):
        load_pretrained(network, RESNET, deeper, "a.pth")
    with pytest.raises(ValueError, match=r"it lacks \d+ of \d+, the first of them"):
        load_pretrained(network, RESNET, {"conv1.0.weight": deeper["conv1.0.weight"]}, "a.pth")


class Surprise:
    """Something whose unpickling runs code."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_of_something_else_is_refused_and_not_executed(name, tmp_path, capsys):
    for content in (Surprise(), [1, 2], {"weights": {"a": torch.ones(1)}}):
        torch.save(content, tmp_path / name)
        with pytest.raises(ValueError, match=rf"{name} (cannot be read as weights|must hold named tensors)"):
            read_weights(tmp_path / name)
    assert "executed" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"the weights .*no\.pth are not a file"):
        read_weights(tmp_path / "no.pth")


def test_files_of_both_kinds_are_read(tmp_path):
    weights = {"a": torch.randn(2)}
    save_file(weights, tmp_path / "a.safetensors")
    torch.save({"state_dict": weights}, tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        assert torch.equal(read_weights(tmp_path / name)["a"], weights["a"])


def test_only_timm_has_a_hub():
    with pytest.raises(ValueError, match="pretrained must name a file for resnext-50-32x4d; timm:resnext50_32x4d has"):
        pretrained_weights("resnext-50-32x4d", HUB, {})
    with pytest.raises(ValueError, match="pretrained must come with a network for ImageNet, timm:NAME or"):
        pretrained_inputs("resnet-8")


def test_inputs_are_those_of_timms_configuration():
    for name in ("resnet50.a1_in1k", "test_vit", "vit_base_patch16_384", "tf_efficientnet_b1"):
        found = pretrained_inputs(f"timm:{name}")
        config = timm.get_pretrained_cfg(name)
        theirs = timm.data.resolve_data_config({}, pretrained_cfg=config.to_dict())
        assert (3, found.size, found.size) == theirs["input_size"]
        assert (found.mean, found.std) == (pytest.approx(theirs["mean"]), pytest.approx(theirs["std"]))
        assert found.resize == int(found.size / theirs["crop_pct"])
