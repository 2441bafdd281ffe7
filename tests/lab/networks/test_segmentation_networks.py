"""Segmentation networks: shapes at any size, classifiers on the features, gradients, dilation, pretrained weights."""

import math

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import conv2d, interpolate

from isda.attach import find_classifiers
from isda.lab.networks import segmentation

CLASSES = 5
NAMES = ["pspnet-resnet-18", "deeplab-v3-resnet-50"]
"""Both heads and both kinds of blocks."""


def create(name="pspnet-resnet-18", **options):
    torch.manual_seed(0)
    return segmentation.create(name, CLASSES, **{"width": 0.125, **options})


def dilations(module):
    return [layer.dilation[0] for layer in module.modules() if getattr(layer, "kernel_size", None) == (3, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_show_what_both_classifiers_read_and_forward_enlarges_the_logits(name):
    network = create(name).eval()
    images = torch.randn(2, 3, 41, 56)
    with torch.no_grad():
        outputs, logits, wrapped = network.outputs(images), network(images), network(images, dense=True)
    for features, made, layer, channels in (
        (outputs.features, outputs.logits, network.classifier, network.feature_dim),
        (outputs.auxiliary_features, outputs.auxiliary_logits, network.auxiliary_classifier, network.auxiliary_dim),
    ):
        assert features.shape[:2] == (2, channels)
        torch.testing.assert_close(made, conv2d(features, layer.weight, layer.bias))
    torch.testing.assert_close(logits, interpolate(outputs.logits, (41, 56), mode="bilinear", align_corners=True))
    assert torch.equal(wrapped.features, outputs.features)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_comes_before_the_features_and_the_gradient_reaches_every_parameter(name):
    network = create(name, dropout=0.5).train()
    outputs = network.outputs(torch.randn(3, 3, 48, 48))
    for features in (outputs.features, outputs.auxiliary_features):
        dropped = (features == 0).flatten(2).all(dim=2)
        assert 0.1 < dropped.float().mean() < 0.9
    torch.testing.assert_close(outputs.logits, network.classifier(outputs.features))
    network = create(name, dropout=0.0).train()
    outputs = network.outputs(torch.randn(3, 3, 48, 48))
    (outputs.logits.square().mean() + outputs.auxiliary_logits.square().mean()).backward()
    assert [key for key, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_the_classifier_is_found_although_there_are_two():
    network = create()
    assert find_classifiers(network) == [network.classifier] == [list(network.modules())[-1]]
    network = create(auxiliary=False).eval()
    assert (network.auxiliary_head, network.auxiliary_classifier, network.auxiliary_dim) == (None, None, None)
    assert network.outputs(torch.randn(1, 3, 24, 24)).auxiliary_logits is None


@pytest.mark.parametrize("stem", ["deep", "torchvision"])
@pytest.mark.parametrize("output_stride", [8, 16, 32])
@pytest.mark.parametrize("size", [(1, 1), (17, 40), (64, 33)])
def test_any_size_gives_logits_of_that_size_from_features_at_the_output_stride(size, output_stride, stem):
    network = create(output_stride=output_stride, stem=stem).train()
    images = torch.randn(2, 3, *size)
    assert network(images).shape == (2, CLASSES, *size)
    for length, position in zip(size, network.outputs(images).features.shape[2:], strict=True):
        # The deep stem's pooling rounds up, which can give one position more.
        expected = -(-length // output_stride)
        assert expected <= position <= expected + (stem == "deep")


def test_the_authors_crop_gives_97_by_97_features_of_512_channels():
    with torch.device("meta"):
        network = segmentation.create("pspnet-resnet-101", 19).eval()
        outputs = network.outputs(torch.empty(1, 3, 769, 769))
    assert outputs.features.shape == outputs.auxiliary_features.shape == (1, 512, 97, 97)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("output_stride", "expected"), [(8, (1, 2, 4)), (16, (1, 1, 2)), (32, (1, 1, 1))])
def test_stages_are_dilated_by_the_strides_they_do_not_take(name, output_stride, expected):
    backbone = create(name, output_stride=output_stride).backbone
    for stage, dilation in zip((backbone.layer2, backbone.layer3, backbone.layer4), expected, strict=True):
        assert set(dilations(stage)) == {dilation}


def test_multi_grid_and_atrous_rates_are_the_publications():
    assert dilations(create("deeplab-v3-resnet-50", multi_grid=(1, 2, 4)).backbone.layer4) == [4, 8, 16]
    for output_stride, rates in ((8, [12, 24, 36]), (16, [6, 12, 18]), (32, [3, 6, 9])):
        assert dilations(create("deeplab-v3-resnet-18", output_stride=output_stride).head) == rates


def test_the_pyramid_is_pooling_projection_and_enlargement_of_each_level():
    head = create().head.double().eval()
    maps = torch.randn(2, 64, 7, 9, dtype=torch.float64)
    levels = []
    for level, bins in zip(head.levels, (1, 2, 3, 6), strict=True):
        pooled = torch.empty(2, 64, bins, bins, dtype=torch.float64)
        for row in range(bins):
            for column in range(bins):
                # Bin i of n takes positions floor(i L / n) to ceil((i + 1) L / n).
                rows = slice(row * 7 // bins, -(-(row + 1) * 7 // bins))
                columns = slice(column * 9 // bins, -(-(column + 1) * 9 // bins))
                pooled[:, :, row, column] = maps[:, :, rows, columns].mean(dim=(2, 3))
        projected = level[1](pooled)
        down, right = torch.linspace(0, bins - 1, 7).double(), torch.linspace(0, bins - 1, 9).double()
        weights = [(1 - (at[:, None] - torch.arange(bins)).abs()).clamp(min=0) for at in (down, right)]
        levels.append(torch.einsum("ir,jc,ndrc->ndij", *weights, projected))
    torch.testing.assert_close(head(maps), head.fuse(torch.cat([*levels, maps], dim=1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_image_in_training_is_refused_in_a_sentence_unless_statistics_are_frozen(name):
    network, image = create(name).train(), torch.randn(1, 3, 24, 24)
    for call in (network, network.outputs):
        with pytest.raises(ValueError, match="at least 2 images per process in training, got 1"):
            call(image)
    assert network.eval()(image).shape == (1, CLASSES, 24, 24)
    assert segmentation.freeze_batch_norm(network).train()(image).shape == (1, CLASSES, 24, 24)


def test_frozen_batch_norm_uses_and_keeps_the_running_figures():
    network, images = create(dropout=0.0), torch.randn(2, 3, 24, 24)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    expected, parameters = network.eval()(images), list(network.parameters())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    frozen = segmentation.freeze_batch_norm(network).train()
    torch.testing.assert_close(frozen(images), expected)
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
    assert all(one is other for one, other in zip(frozen.parameters(), parameters, strict=True))
    frozen(images).square().mean().backward()
    assert frozen.head.fuse[0][1].weight.grad.any()
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(create())
    assert segmentation.freeze_batch_norm(synchronised).train()(images[:1]).shape == (1, CLASSES, 24, 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "pspnet-resnet18"}, "did you mean 'pspnet-resnet-18'"),
        ({"output_stride": 4}, "output_stride must be one of 8, 16, 32, got 4"),
        ({"stem": "shallow"}, "stem must be one of deep, torchvision, got 'shallow'"),
        ({"width": 0}, "width must be a positive number, got 0"),
        ({"multi_grid": ()}, "multi_grid must hold factors of at least 1"),
        ({"multi_grid": (1, 0)}, "multi_grid must hold factors of at least 1"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        create(**options)
    for shape in ((3, 8, 8), (2, 1, 8, 8)):
        with pytest.raises(ValueError, match=r"images must have shape \(N, 3, H, W\), got \("):
            create().outputs(torch.zeros(shape))


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=3).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    return model


def test_weights_under_torchvisions_names_give_torchvisions_maps(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "weights.pth")
    network = segmentation.create("pspnet-resnet-18", 5, output_stride=32, pretrained=tmp_path / "weights.pth").eval()
    images = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        maps = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(images))))
        middle = resnet.layer3(resnet.layer2(resnet.layer1(maps)))
        for ours, theirs in zip(network.backbone(images), (middle, resnet.layer4(middle)), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_the_whole_of_torchvisions_network_is_there_but_the_classifier():
    with torch.device("meta"):
        for depth in (18, 34, 50, 101):
            theirs = torchvision.models.get_model(f"resnet{depth}").state_dict()
            ours = segmentation.create(f"pspnet-resnet-{depth}", 2, stem="torchvision").backbone.state_dict()
            assert {name: tensor.shape for name, tensor in ours.items()} == {
                name: tensor.shape for name, tensor in theirs.items() if not name.startswith("fc.")
            }


def test_torchvisions_own_weights_are_taken_from_its_cache(resnet, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    cached = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    cached.parent.mkdir(parents=True)
    torch.save(resnet.state_dict(), cached)
    network = segmentation.create("deeplab-v3-resnet-18", 5, pretrained="torchvision")
    assert torch.equal(network.backbone.conv1.weight, resnet.conv1.weight)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda state: state, {"stem": "deep"}, "must hold the weights of the backbone, it lacks|conv1.weight is"),
        (lambda state: state, {"width": 0.5}, r"conv1.weight is \(64, 3, 7, 7\), not \(32, 3, 7, 7\)"),
        (lambda state: state | {"neck.weight": torch.ones(1)}, {}, "which has no neck.weight"),
        (lambda state: state | {"bn1.bias": state["bn1.bias"] * math.nan}, {}, "finite weights, but bn1.bias has 64"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, options, message, resnet, tmp_path):
    torch.save(change(resnet.state_dict()), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=message):
        segmentation.create("pspnet-resnet-18", 5, pretrained=tmp_path / "weights.pth", **options)
