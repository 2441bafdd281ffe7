"""Details of the publications that parameter counts alone would not show."""

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.networks.cifar import (
    DenseLayer,
    PooledBlock,
    ResidualBlock,
    ShakeBlock,
    ShiftedShortcut,
    SqueezeExcitation,
    WideBlock,
    basic_block,
    shake,
)

CIFAR_DEPTHS = {
    "resnet-8": 8,
    "resnet-110": 110,
    "resnext-29-8x64d": 29,
    "densenet-bc-100-12": 100,
    "shake-shake-26-2x32d": 26,
    "densenet-121": 121,
    "densenet-265": 265,
}


def create_on_meta(name, **options):
    with torch.device("meta"):
        return networks.create(name, num_classes=10, **options)


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


def test_densenet_layers_are_bottlenecks_and_transitions_halve_the_channels():
    body = create_on_meta("densenet-bc-100-12").body
    dense = layers(body, DenseLayer)
    assert len(dense) == 48
    for layer in dense:
        narrow, wide = layers(layer, nn.Conv2d)
        assert (narrow.kernel_size, narrow.out_channels) == ((1, 1), 48)
        assert (wide.kernel_size, wide.in_channels, wide.out_channels) == ((3, 3), 48, 12)
    compress = [layers(getattr(body, f"transition{index}"), nn.Conv2d)[0] for index in (1, 2)]
    assert [(layer.in_channels, layer.out_channels) for layer in compress] == [(216, 108), (300, 150)]


def test_a_dense_layer_keeps_its_input_and_appends_new_maps():
    maps = torch.randn(2, 5, 4, 4)
    output = DenseLayer(5, growth=3, dropout=0.0)(maps.clone())
    assert output.shape == (2, 8, 4, 4)
    assert torch.equal(output[:, :5], maps)


def test_squeeze_and_excitation_equals_its_equation():
    gate = SqueezeExcitation(32).double()
    maps = torch.randn(3, 32, 5, 4, dtype=torch.float64)
    first, second = gate.squeeze.weight.flatten(1), gate.excite.weight.flatten(1)
    for sample, output in zip(maps, gate(maps), strict=True):
        means = torch.stack([channel.sum() / 20 for channel in sample])
        scale = 1 / (1 + torch.exp(-(second @ torch.clamp(first @ means, min=0))))
        torch.testing.assert_close(output, scale[:, None, None] * sample)


def test_se_resnet_gates_every_residual_branch_with_reduction_16_before_the_addition():
    gates = layers(create_on_meta("se-resnet-110"), SqueezeExcitation)
    assert [gate.squeeze.out_channels for gate in gates] == [1] * 18 + [2] * 18 + [4] * 18
    block = basic_block(16, 16, gated=True).eval()
    maps = torch.randn(2, 16, 4, 4)
    *plain, gate = block.residual
    torch.testing.assert_close(block(maps), (gate(nn.Sequential(*plain)(maps)) + maps).relu())


def test_resnet_shortcuts_are_projections_only_where_the_shape_changes():
    shortcuts = [block.shortcut for block in layers(create_on_meta("resnet-20"), ResidualBlock)]
    assert [index for index, shortcut in enumerate(shortcuts) if not isinstance(shortcut, nn.Identity)] == [3, 6]


def test_a_wide_block_feeds_a_projection_the_activated_input_and_keeps_the_raw_one_otherwise():
    maps = torch.randn(2, 4, 6, 6)
    block = WideBlock(4, 8, stride=2, dropout=0.0).eval()
    activated = block.activation(maps)
    torch.testing.assert_close(block(maps), block.shortcut(activated) + block.residual(activated))
    block = WideBlock(4, 4, stride=1, dropout=0.0).eval()
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
    assert [layer.negative_slope for layer in layers(network, nn.LeakyReLU)] == pytest.approx([0.1] * 9)
    maps = nn.Sequential(*list(network.body)[:-1])(torch.empty(2, 3, 32, 32, device="meta"))
    assert maps.shape == (2, 128, 6, 6)


def test_a_pooled_block_halves_the_resolution_and_adds_its_residual():
    block = PooledBlock(3, 6).eval()
    maps = torch.randn(2, 3, 8, 8)
    reduced = block.reduce(maps)
    assert reduced.shape == (2, 6, 4, 4)
    torch.testing.assert_close(block(maps), reduced + block.residual(reduced))


def test_convolutions_start_with_the_variance_of_he_et_al_and_normalisation_as_the_identity():
    network = networks.create("wide-resnet-16-8", num_classes=10)
    for layer in layers(network.body, nn.Conv2d):
        expected = (2 / (layer.kernel_size[0] ** 2 * layer.out_channels)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.15)
    assert all((layer.weight == 1).all() and (layer.bias == 0).all() for layer in layers(network, nn.BatchNorm2d))
    assert (network.classifier.bias == 0).all()


@pytest.mark.parametrize(
    "name", ["resnet-8", "fast-cnn", "wide-resnet-10-2", "densenet-bc-40-12", "cnn-13", "densenet-121"]
)
def test_dropout_mutes_at_its_rate_in_training_alone(name):
    network = networks.create(name, num_classes=10, dropout=0.3)
    without = networks.create(name, num_classes=10, dropout=0.0)
    images = torch.randn(2, 3, 64, 64) if name == "densenet-121" else torch.randn(8, 3, 16, 16)
    seen = []
    for module in layers(network, nn.Dropout):
        module.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        assert not torch.equal(network(images), network(images))
        for before, after in seen[:3]:
            kept = after != 0
            assert 1 - kept.sum() / (before != 0).sum() == pytest.approx(0.3, abs=0.03)
            torch.testing.assert_close(after[kept], before[kept] / 0.7)
        without.load_state_dict(network.state_dict())
        torch.testing.assert_close(network.eval()(images), without.eval()(images))


@pytest.mark.parametrize(
    ("name", "rate"), [("wide-resnet-28-10", 0.3), ("wide-resnet-16-8", 0.0), ("resnet-110", 0.0), ("cnn-13", 0.5)]
)
def test_the_rate_is_the_papers_unless_told_otherwise(name, rate):
    assert {module.p for module in layers(create_on_meta(name), nn.Dropout)} == {rate}
    assert {module.p for module in layers(create_on_meta(name, dropout=0.2), nn.Dropout)} == {0.2}


def test_shake_has_the_forward_share_in_its_value_and_the_backward_share_in_its_gradient():
    left, right = (torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    forward_share, backward_share = (torch.rand(3, 1, 1, 1, dtype=torch.float64) for _ in range(2))
    incoming = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    mixed = shake(left, right, forward_share, backward_share)
    torch.testing.assert_close(mixed, forward_share * left + (1 - forward_share) * right)
    mixed.backward(incoming)
    torch.testing.assert_close(left.grad, backward_share * incoming)
    torch.testing.assert_close(right.grad, (1 - backward_share) * incoming)


def test_shares_are_uniform_and_independent_of_each_other_and_of_the_neighbours():
    block = ShakeBlock(4, 4, stride=1).double().train()
    outputs = {}

    def keep(module, _inputs, output):
        output.retain_grad()
        outputs[module] = output

    for branch in (block.left, block.right):
        branch.register_forward_hook(keep)
    images = torch.randn(2000, 4, 3, 3, dtype=torch.float64)
    mixed = block(images) - images
    incoming = torch.randn_like(mixed)
    mixed.backward(incoming)
    left, right = outputs[block.left], outputs[block.right]
    # mixed = right + share (left - right) for every entry of an image: the least-squares share must fit exactly.
    direction, offset = (left - right).detach().flatten(1), (mixed - right).detach().flatten(1)
    forward = (offset * direction).sum(1) / direction.square().sum(1)
    torch.testing.assert_close(offset, forward[:, None] * direction)
    backward = (left.grad * incoming).flatten(1).sum(1) / incoming.square().flatten(1).sum(1)
    torch.testing.assert_close(left.grad, backward[:, None, None, None] * incoming)
    torch.testing.assert_close(right.grad, (1 - backward)[:, None, None, None] * incoming)
    uniform = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    for share in (forward, backward):
        # Kolmogorov-Smirnov distance; above 0.045 with probability below one in a thousand.
        assert (share.sort().values - uniform).abs().max() < 0.045
        assert abs(torch.corrcoef(torch.stack((share[:-1], share[1:])))[0, 1]) < 0.075
    assert abs(torch.corrcoef(torch.stack((forward, backward)))[0, 1]) < 0.075


def test_evaluation_mixes_both_branches_equally():
    block = ShakeBlock(4, 4, stride=1).eval()
    images = torch.randn(5, 4, 3, 3)
    torch.testing.assert_close(block(images), images + 0.5 * block.left(images) + 0.5 * block.right(images))


def test_the_shifted_shortcut_samples_even_pixels_and_their_diagonal_neighbours():
    shortcut = ShiftedShortcut(3, 4, stride=2).eval()
    maps = torch.randn(2, 3, 6, 6)
    direct, shifted = (layer.weight.flatten(1) for layer in (shortcut.direct, shortcut.shifted))
    even, odd = (maps[:, :, start::2, start::2].relu().movedim(1, -1) for start in (0, 1))
    expected = torch.cat((even @ direct.T, odd @ shifted.T), dim=-1).movedim(-1, 1)
    torch.testing.assert_close(shortcut(maps), expected / (1 + shortcut.normalise.eps) ** 0.5)
