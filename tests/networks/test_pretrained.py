"""Weights from files and from the hub: what fits is loaded whole, what does not is named, and nothing waits long."""

from __future__ import annotations

import time

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import constants, try_to_load_from_cache
from safetensors.torch import save_file

from isda.lab import networks
from isda.lab.networks.export import export_state
from isda.lab.networks.pretrained import HUB, load_pretrained, pretrained_inputs, pretrained_weights
from isda.lab.networks.weight_files import read_weights


def test_a_hub_that_is_not_there_is_said_within_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"timm:test_resnet could not be had from the hub \(.*; name a file"):
        pretrained_weights("timm:test_resnet", HUB, {})
    assert time.monotonic() - started < 10


def test_what_was_fetched_before_needs_no_hub(monkeypatch, tmp_path):
    """The layout of the hub's cache, with a file that was made here."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    repository = tmp_path / "models--timm--test_resnet.r160_in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    model = timm.create_model("test_resnet")
    save_file(model.state_dict(), repository / "snapshots" / "abc" / "model.safetensors")
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda *words, **more: try_to_load_from_cache(*words, cache_dir=tmp_path, **more),
    )
    found = pretrained_weights("timm:test_resnet", HUB, {"in_channels": 3})
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.items())


def test_only_timm_has_a_hub():
    with pytest.raises(ValueError, match="pretrained must name a file for resnext-50-32x4d; timm:resnext50_32x4d has"):
        pretrained_weights("resnext-50-32x4d", HUB, {})


def test_a_deeper_networks_file_is_not_taken_for_a_shallower_ones():
    network = networks.create("timm:test_resnet", num_classes=3)
    weights = timm.create_model("test_resnet", layers=(1, 1, 1, 2)).state_dict()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ValueError, match=r"a\.pth must hold the weights of the backbone, which has no layer4\.1"):
        load_pretrained(network, "timm:test_resnet", weights, "a.pth")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_tensor_of_another_shape_is_named():
    network = networks.create("timm:test_resnet", num_classes=3, in_channels=1)
    weights = timm.create_model("test_resnet").state_dict()
    with pytest.raises(ValueError, match=r"a.pth must fit the backbone, but conv1.0.weight is \(.*, 3, 3, 3\), not"):
        load_pretrained(network, "timm:test_resnet", weights, "a.pth")


NOT_FINITE = r"finite weights, but conv1.0.weight has \d+ NaN or infinite values of \d+"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight * float("nan"), NOT_FINITE),
        (lambda weight: weight / 0, NOT_FINITE),
        (torch.Tensor.long, "dense floating-point weights, but conv1.0.weight is torch.strided of int64"),
        (torch.Tensor.bool, "torch.strided of bool"),
        (lambda weight: weight.to(torch.complex64), "torch.strided of complex64"),
        (torch.Tensor.to_sparse, "torch.sparse_coo of float32"),
    ],
    ids=["nan", "infinite", "integers", "truth values", "complex", "sparse"],
)
def test_tensors_with_values_that_no_weights_have_are_named(change, message):
    """load_state_dict would convert or keep them."""
    network = networks.create("timm:test_resnet", num_classes=3)
    weights = timm.create_model("test_resnet").state_dict()
    weights["conv1.0.weight"] = change(weights["conv1.0.weight"])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ValueError, match=f"^a.pth must hold .*{message}"):
        load_pretrained(network, "timm:test_resnet", weights, "a.pth")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_file_with_a_sparse_tensor_is_refused(tmp_path):
    torch.save({"weight": torch.eye(3).to_sparse()}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a.pth must hold dense tensors, but weight is torch.sparse_coo"):
        read_weights(tmp_path / "a.pth")


def test_variances_below_zero_are_named():
    network = networks.create("timm:test_resnet", num_classes=3)
    weights = timm.create_model("test_resnet").state_dict()
    weights["bn1.running_var"] = weights["bn1.running_var"] - 2
    with pytest.raises(ValueError, match=r"^a.pth must hold variances of at least 0, but .*running_var has -1$"):
        load_pretrained(network, "timm:test_resnet", weights, "a.pth")


@pytest.mark.parametrize("layout", ["timm", "run", "wrapped"])
def test_names_of_timm_of_a_run_and_of_a_wrapper_are_known(layout):
    source, target = (networks.create("timm:test_resnet", num_classes=count) for count in (5, 3))
    state = {
        "timm": lambda: export_state(source, "timm:test_resnet", "timm", {}),
        "run": source.state_dict,
        "wrapped": lambda: {f"module.{k}": v for k, v in export_state(source, "timm:test_resnet", "timm", {}).items()},
    }[layout]()
    load_pretrained(target, "timm:test_resnet", state, "a file")
    own = target.body.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in source.body.state_dict().items())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "resnetv2_18"])
def test_timm_takes_back_what_it_gave(name):
    network = networks.create(f"timm:{name}", num_classes=4).eval()
    torch.nn.init.normal_(network.classifier.weight)
    model = timm.create_model(name, num_classes=4).eval()
    model.load_state_dict(export_state(network, f"timm:{name}", "timm", {}))
    pixels = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), network(pixels))


def test_two_classifiers_are_not_timms_to_take_back():
    name = "timm:deit_tiny_distilled_patch16_224"
    with pytest.raises(ValueError, match="must end in one linear layer"):
        export_state(networks.create(name, num_classes=4, depth=1), name, "timm", {"depth": 1})


def test_inputs_are_those_of_timms_configuration():
    for name in ("resnet50.a1_in1k", "test_vit", "vit_base_patch16_384", "tf_efficientnet_b1"):
        found = pretrained_inputs(f"timm:{name}")
        config = timm.get_pretrained_cfg(name)
        theirs = timm.data.resolve_data_config({}, pretrained_cfg=config.to_dict())
        assert (3, found.size, found.size) == theirs["input_size"]
        assert (found.mean, found.std) == (theirs["mean"], theirs["std"])
        assert found.resize == int(found.size / theirs["crop_pct"])
