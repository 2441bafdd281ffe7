"""Shake-Shake: one forward and one backward share per image, independent; the expectation in evaluation."""

import pytest
import torch

from isda.lab.networks.shake_shake import ShakeBlock, ShiftedShortcut, shake


def test_the_value_uses_the_forward_share_and_the_gradient_the_backward_share():
    torch.manual_seed(0)
    left, right = (torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    forward_share, backward_share = (torch.rand(3, 1, 1, 1, dtype=torch.float64) for _ in range(2))
    incoming = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    mixed = shake(left, right, forward_share, backward_share)
    torch.testing.assert_close(mixed, forward_share * left + (1 - forward_share) * right)
    mixed.backward(incoming)
    torch.testing.assert_close(left.grad, backward_share * incoming)
    torch.testing.assert_close(right.grad, (1 - backward_share) * incoming)


@pytest.fixture(scope="module")
def shares():
    """The shares that a block drew for 2,000 images, read off its branches: (forward, backward), each (2000,)."""
    torch.manual_seed(0)
    block = ShakeBlock(4, 4, stride=1).double().train()
    outputs = {}
    for side in ("left", "right"):

        def keep(_module, _inputs, output, side=side):
            output.retain_grad()
            outputs[side] = output

        getattr(block, side).register_forward_hook(keep)
    images = torch.randn(2000, 4, 3, 3, dtype=torch.float64)
    mixed = block(images) - images
    incoming = torch.randn_like(mixed)
    mixed.backward(incoming)
    left, right = outputs["left"], outputs["right"]
    # mixed = right + share (left - right) for every entry of an image: the least-squares share must fit exactly.
    direction = (left - right).detach().flatten(1)
    offset = (mixed - right).detach().flatten(1)
    forward = (offset * direction).sum(1) / direction.square().sum(1)
    torch.testing.assert_close(offset, forward[:, None] * direction)
    backward = (left.grad * incoming).flatten(1).sum(1) / incoming.square().flatten(1).sum(1)
    torch.testing.assert_close(left.grad, backward[:, None, None, None] * incoming)
    torch.testing.assert_close(right.grad, (1 - backward)[:, None, None, None] * incoming)
    return forward, backward


@pytest.mark.parametrize("which", [0, 1])
def test_each_share_is_uniform_between_0_and_1(shares, which):
    drawn = shares[which].sort().values
    assert drawn[0] >= -1e-9
    assert drawn[-1] <= 1 + 1e-9
    uniform = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    # Kolmogorov-Smirnov distance; above 0.045 with probability below one in a thousand.
    assert (drawn - uniform).abs().max() < 0.045


def test_forward_and_backward_shares_are_independent(shares):
    assert abs(torch.corrcoef(torch.stack(shares))[0, 1]) < 0.075


@pytest.mark.parametrize("which", [0, 1])
def test_neighbouring_images_have_independent_shares(shares, which):
    drawn = shares[which]
    assert abs(torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]) < 0.075


def test_evaluation_mixes_equally_in_both_directions():
    torch.manual_seed(0)
    block = ShakeBlock(4, 4, stride=1).eval()
    images = torch.randn(5, 4, 3, 3)
    with torch.no_grad():
        left, right = block.left(images), block.right(images)
        torch.testing.assert_close(block(images), images + 0.5 * left + 0.5 * right)
    outputs = []
    for branch in (block.left, block.right):
        branch.register_forward_hook(lambda _module, _inputs, output: (output.retain_grad(), outputs.append(output))[1])
    block(images).sum().backward()
    for output in outputs:
        torch.testing.assert_close(output.grad, torch.full_like(output, 0.5))


def test_the_shortcut_samples_even_pixels_and_their_diagonal_neighbours():
    torch.manual_seed(0)
    shortcut = ShiftedShortcut(3, 4, stride=2).eval()
    maps = torch.randn(2, 3, 6, 6)
    direct, shifted = (layer.weight.flatten(1) for layer in (shortcut.direct, shortcut.shifted))
    expected = torch.empty(2, 4, 3, 3)
    for row in range(3):
        for column in range(3):
            even = maps[:, :, 2 * row, 2 * column].relu()
            odd = maps[:, :, 2 * row + 1, 2 * column + 1].relu()
            expected[:, :, row, column] = torch.cat((even @ direct.T, odd @ shifted.T), dim=1)
    torch.testing.assert_close(shortcut(maps), expected / (1 + shortcut.normalise.eps) ** 0.5)
