"""Details of the publications that parameter counts alone would not show."""

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.networks.cnn import PooledBlock
from isda.lab.networks.densenet import DenseLayer
from isda.lab.networks.resnet import BasicBlock, SqueezeExcitation
from isda.lab.networks.wide_resnet import WideBlock

CIFAR_DEPTHS = {
    "resnet-8": 8,
    "resnet-110": 110,
    "resnext-29-8x64d": 29,
    "densenet-bc-100-12": 100,
    "shake-shake-26-2x32d": 26,
}


def create_on_meta(name):
    with torch.device("meta"):
        return networks.create(name, num_classes=10)


def layers(module, kind):
    return [layer for layer in module.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize(("name", "depth"), CIFAR_DEPTHS.items())
def test_the_longest_path_has_as_many_weighted_layers_as_the_name_says(name, depth):
    keys = [key for key, module in create_on_meta(name).named_modules() if isinstance(module, nn.Conv2d)]
    on_the_path = [key for key in keys if not {"right", "shortcut"} & set(key.split("."))]
    assert len(on_the_path) + 1 == depth


@pytest.mark.parametrize(("name", "depth"), [("wide-resnet-16-8", 16), ("wide-resnet-28-10", 28)])
def test_wide_resnets_have_as_many_convolutions_with_their_shortcuts_as_the_name_says(name, depth):
    assert len(layers(create_on_meta(name), nn.Conv2d)) == depth


@pytest.mark.parametrize(("name", "depth"), [("densenet-121", 121), ("densenet-265", 265)])
def test_imagenet_densenets_have_as_many_weighted_layers_as_the_name_says(name, depth):
    assert len(layers(create_on_meta(name), nn.Conv2d)) + 1 == depth


def test_densenet_layers_are_bottlenecks_of_four_times_the_growth():
    dense = layers(create_on_meta("densenet-bc-100-12"), DenseLayer)
    assert len(dense) == 48
    for layer in dense:
        narrow, wide = layers(layer, nn.Conv2d)
        assert (narrow.kernel_size, narrow.out_channels) == ((1, 1), 48)
        assert (wide.kernel_size, wide.in_channels, wide.out_channels) == ((3, 3), 48, 12)


def test_densenet_transitions_halve_the_channels():
    body = create_on_meta("densenet-bc-100-12").body
    compress = [layers(getattr(body, f"transition{index}"), nn.Conv2d)[0] for index in (1, 2)]
    assert [(layer.in_channels, layer.out_channels) for layer in compress] == [(216, 108), (300, 150)]
    assert body.stem.out_channels == 24


def test_a_dense_layer_keeps_its_input_and_appends_new_maps():
    torch.manual_seed(0)
    layer = DenseLayer(5, growth=3, dropout=0.0)
    maps = torch.randn(2, 5, 4, 4)
    kept = maps.clone()
    output = layer(maps)
    assert output.shape == (2, 8, 4, 4)
    assert torch.equal(output[:, :5], kept)


def test_squeeze_and_excitation_equals_its_equation():
    torch.manual_seed(0)
    gate = SqueezeExcitation(32).double()
    maps = torch.randn(3, 32, 5, 4, dtype=torch.float64)
    first, second = gate.squeeze.weight.flatten(1), gate.excite.weight.flatten(1)
    expected = torch.empty_like(maps)
    for sample in range(3):
        means = torch.stack([maps[sample, channel].sum() / 20 for channel in range(32)])
        scale = 1 / (1 + torch.exp(-(second @ torch.clamp(first @ means, min=0))))
        for channel in range(32):
            expected[sample, channel] = scale[channel] * maps[sample, channel]
    torch.testing.assert_close(gate(maps), expected)


def test_se_resnet_gates_every_residual_branch_with_reduction_16_before_the_addition():
    network = create_on_meta("se-resnet-110")
    assert [gate.squeeze.out_channels for gate in layers(network, SqueezeExcitation)] == [1] * 18 + [2] * 18 + [4] * 18
    torch.manual_seed(0)
    block = BasicBlock(16, 16, gated=True).eval()
    maps = torch.randn(2, 16, 4, 4)
    *plain, gate = block.residual
    torch.testing.assert_close(block(maps), (gate(nn.Sequential(*plain)(maps)) + maps).relu())


def test_resnet_shortcuts_are_projections_only_where_the_shape_changes():
    shortcuts = [block.shortcut for block in layers(create_on_meta("resnet-20"), BasicBlock)]
    projections = [index for index, shortcut in enumerate(shortcuts) if not isinstance(shortcut, nn.Identity)]
    assert projections == [3, 6]


def test_a_wide_block_with_a_projection_feeds_it_the_activated_input():
    torch.manual_seed(0)
    block = WideBlock(4, 8, stride=2, dropout=0.0).eval()
    maps = torch.randn(2, 4, 6, 6)
    activated = block.activation(maps)
    torch.testing.assert_close(block(maps), block.shortcut(activated) + block.residual(activated))


def test_a_wide_block_without_projection_keeps_the_raw_input():
    torch.manual_seed(0)
    block = WideBlock(4, 4, stride=1, dropout=0.0).eval()
    maps = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(block(maps), maps + block.residual(block.activation(maps)))


def test_resnext_has_8_groups_of_64_128_and_256_channels():
    grouped = [layer for layer in layers(create_on_meta("resnext-29-8x64d"), nn.Conv2d) if layer.groups > 1]
    assert [(layer.groups, layer.out_channels // layer.groups) for layer in grouped] == (
        [(8, 64)] * 3 + [(8, 128)] * 3 + [(8, 256)] * 3
    )


def test_cnn_13_has_the_layers_of_the_papers_table():
    network = create_on_meta("cnn-13")
    convolutions = [(layer.kernel_size[0], layer.out_channels) for layer in layers(network, nn.Conv2d)]
    assert convolutions == [(3, 128)] * 3 + [(3, 256)] * 3 + [(3, 512), (1, 256), (1, 128)]
    assert {layer.negative_slope for layer in layers(network, nn.LeakyReLU)} == {0.1}
    assert [layer.p for layer in layers(network, nn.Dropout)] == [0.5, 0.5]
    sizes = []
    network.body.stage3.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[2:]))
    network(torch.empty(2, 3, 32, 32, device="meta"))
    assert sizes == [(6, 6)]


def test_a_pooled_block_halves_the_resolution_and_adds_its_residual():
    torch.manual_seed(0)
    block = PooledBlock(3, 6).eval()
    maps = torch.randn(2, 3, 8, 8)
    reduced = block.reduce(maps)
    assert reduced.shape == (2, 6, 4, 4)
    torch.testing.assert_close(block(maps), reduced + block.residual(reduced))


def test_convolutions_start_with_the_variance_of_he_et_al():
    torch.manual_seed(0)
    network = networks.create("wide-resnet-16-8", num_classes=10)
    for layer in layers(network.body, nn.Conv2d):
        expected = (2 / (layer.kernel_size[0] ** 2 * layer.out_channels)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.15)
    assert (network.classifier.bias == 0).all()
