"""What holds for every segmentation network: shapes at any size, classifiers on the features, gradients, dilation."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate

from isda.attach import find_classifier
from isda.lab.networks import segmentation
from isda.lab.networks.segmentation.network import resize_maps

CLASSES = 5
NAMES = ["pspnet-resnet-18", "deeplab-v3-resnet-50"]
"""Both heads and both kinds of blocks."""


def create(name="pspnet-resnet-18", **options):
    torch.manual_seed(0)
    return segmentation.create(name, CLASSES, **{"width": 0.125, **options})


def convolutions(module, size):
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (size, size)]


def test_the_names_are_both_architectures_on_four_depths():
    depths = (18, 34, 50, 101)
    assert segmentation.names() == [f"{head}-resnet-{depth}" for head in ("pspnet", "deeplab-v3") for depth in depths]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_show_what_both_classifiers_read_and_forward_enlarges_the_logits(name):
    network = create(name).eval()
    images = torch.randn(2, 3, 41, 56)
    with torch.no_grad():
        outputs, logits = network.outputs(images), network(images)
    for features, made, layer, channels in (
        (outputs.features, outputs.logits, network.classifier, network.feature_dim),
        (outputs.auxiliary_features, outputs.auxiliary_logits, network.auxiliary_classifier, network.auxiliary_dim),
    ):
        assert features.shape[:2] == (2, channels)
        assert made.isfinite().all()
        torch.testing.assert_close(made, conv2d(features, layer.weight, layer.bias))
    torch.testing.assert_close(logits, interpolate(outputs.logits, (41, 56), mode="bilinear", align_corners=True))


@pytest.mark.parametrize("name", NAMES)
def test_dropout_comes_before_the_features(name):
    network = create(name, dropout=0.5).train()
    torch.manual_seed(1)
    outputs = network.outputs(torch.randn(2, 3, 40, 40))
    for features in (outputs.features, outputs.auxiliary_features):
        dropped = (features == 0).flatten(2).all(dim=2)
        assert 0.1 < dropped.float().mean() < 0.9
    torch.testing.assert_close(outputs.logits, network.classifier(outputs.features))


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_both_logits_reaches_every_parameter(name):
    network = create(name, dropout=0.0).train()
    outputs = network.outputs(torch.randn(3, 3, 48, 48))
    (outputs.logits.square().mean() + outputs.auxiliary_logits.square().mean()).backward()
    assert [key for key, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_without_auxiliary_head_there_is_none():
    network = create(auxiliary=False).eval()
    outputs = network.outputs(torch.randn(1, 3, 24, 24))
    assert (network.auxiliary_head, network.auxiliary_classifier, network.auxiliary_dim) == (None, None, None)
    assert (outputs.auxiliary_logits, outputs.auxiliary_features) == (None, None)


def test_wrappers_get_the_outputs_through_a_call():
    network = create().eval()
    images = torch.randn(1, 3, 24, 24)
    assert torch.equal(network(images, dense=True).features, network.outputs(images).features)


def test_the_classifier_is_found_although_there_are_two():
    network = create()
    assert find_classifier(network) is network.classifier
    assert list(network.modules())[-1] is network.classifier


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
    assert outputs.logits.shape == (1, 19, 97, 97)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("output_stride", "expected"), [(8, (2, 4)), (16, (1, 2)), (32, (1, 1))])
def test_stages_are_dilated_by_the_strides_they_do_not_take(name, output_stride, expected):
    backbone = create(name, output_stride=output_stride).backbone
    for stage, dilation in zip((backbone.layer3, backbone.layer4), expected, strict=True):
        assert {layer.dilation for layer in convolutions(stage, 3)} == {(dilation, dilation)}
    assert {layer.dilation for layer in convolutions(backbone.layer2, 3)} == {(1, 1)}


def test_multi_grid_multiplies_the_dilations_of_the_last_stage():
    backbone = create("deeplab-v3-resnet-50", multi_grid=(1, 2, 4)).backbone
    assert [layer.dilation[0] for layer in convolutions(backbone.layer4, 3)] == [4, 8, 16]
    assert {layer.dilation[0] for layer in convolutions(backbone.layer3, 3)} == {2}


@pytest.mark.parametrize(("output_stride", "rates"), [(8, [12, 24, 36]), (16, [6, 12, 18]), (32, [3, 6, 9])])
def test_atrous_rates_are_the_publications_at_each_output_stride(output_stride, rates):
    head = create("deeplab-v3-resnet-18", output_stride=output_stride).head
    assert [layer.dilation[0] for layer in convolutions(head, 3)] == rates


def test_width_scales_backbone_and_heads():
    backbone = create(width=0.25).backbone
    assert [convolutions(getattr(backbone, f"layer{stage}"), 3)[-1].out_channels for stage in (1, 2, 3, 4)] == [
        16,
        32,
        64,
        128,
    ]
    assert [(create(name, width=0.5).feature_dim, create(name).feature_dim) for name in NAMES] == [(64, 16), (256, 64)]


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
    expected = head.fuse(torch.cat([*levels, maps], dim=1))
    torch.testing.assert_close(head(maps), expected, rtol=1e-5, atol=1e-6)


def test_maps_of_the_right_size_are_not_resized():
    maps = torch.randn(1, 2, 3, 4)
    assert resize_maps(maps, maps.shape[2:]) is maps


@pytest.mark.parametrize("name", NAMES)
def test_one_image_in_training_is_refused_in_a_sentence(name):
    network, image = create(name), torch.randn(1, 3, 24, 24)
    for call in (network.train(), network.outputs):
        with pytest.raises(ValueError, match="at least 2 images per process in training, got 1"):
            call(image)
    assert network.eval()(image).shape == (1, CLASSES, 24, 24)
    assert segmentation.freeze_batch_norm(network).train()(image).shape == (1, CLASSES, 24, 24)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 1, 8, 8)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"images must have shape \(N, 3, H, W\), got \("):
        create().outputs(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "pspnet-resnet18"}, "did you mean 'pspnet-resnet-18'"),
        ({"output_stride": 4}, "output_stride must be one of 8, 16, 32, got 4"),
        ({"stem": "shallow"}, "stem must be one of deep, torchvision, got 'shallow'"),
        ({"width": 0}, "width must be a positive number, got 0"),
        ({"dropout": 1.0}, "dropout must be a number"),
        ({"multi_grid": ()}, "multi_grid must hold at least one factor"),
        ({"multi_grid": (1, 0)}, "multi_grid must be an integer of at least 1, got 0"),
        ({"pretrained": "torchvision", "width": 0.5}, "needs width 1.0 and its stem, got width 0.5"),
        ({"pretrained": "torchvision", "width": 1.0, "stem": "deep"}, "needs width 1.0 and its stem, .* stem 'deep'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        create(**options)
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 1"):
        segmentation.create("pspnet-resnet-18", 0)
