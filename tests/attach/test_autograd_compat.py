"""The private interfaces of torch, one expression each: runs with the newest and with the oldest supported torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from isda.attach import autograd_compat as compat

TORCH_2_4 = torch.__version__.startswith("2.4.")
INDEX = torch.tensor([2, 0])


def leaf(*shape):
    return torch.ones(shape, requires_grad=True)


def node(expression, *shape):
    """The node of an expression of a tensor that is no leaf, of shape (2, 3, 4) unless another is given."""
    return expression(leaf(*(shape or (2, 3, 4))).sin()).grad_fn


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        (lambda x: x + 1, "Add"),
        (lambda x: x - x, "Sub"),
        (lambda x: x * 2, "Mul"),
        (lambda x: x / 2, "Div"),
        (lambda x: x.mean(1), "Mean"),
        (lambda x: x.sum(1), "Sum"),
        (lambda x: torch.stack([x, x]), "Stack"),
        (lambda x: x.permute(1, 0, 2), "Permute"),
        (lambda x: x.transpose(0, 1), "Transpose"),
        (lambda x: x.mT, "Transpose"),
        (lambda x: x[0].t(), "T"),
        (lambda x: x[1:], "Slice"),
        (lambda x: x[1], "Select"),
        (lambda x: x.unbind(1)[2], "Unbind"),
        (lambda x: x.split(2, 2)[0], "Split"),
        (lambda x: x.split([1, 3], 2)[0], "SplitWithSizes"),
        (lambda x: x.index_select(2, INDEX), "IndexSelect"),
        (lambda x: x[:, INDEX], "Index"),
        (lambda x: x.view(6, 4), "View"),
        (lambda x: x.unsqueeze(1), "Unsqueeze"),
        (lambda x: x[:1].squeeze(0), "Squeeze"),
        (lambda x: x.clone(), "Clone"),
        (lambda x: x.double(), "ToCopy"),
        (lambda x: F.interpolate(x.unsqueeze(0), size=(6, 8), mode="bilinear"), "UpsampleBilinear2D"),
    ],
)
def test_operation_name(expression, name):
    assert compat.operation_name(node(expression)) == name


@pytest.mark.parametrize(
    ("function", "expression", "expected"),
    [
        (compat.input_sizes, lambda x: x[1:], (2, 3, 4)),
        (compat.input_sizes, lambda x: x.select(1, 0), (2, 3, 4)),
        (compat.input_sizes, lambda x: x.view(6, 4), (2, 3, 4)),
        (compat.input_sizes, lambda x: x.split(2, 2)[1], (2, 3, 4)),
        (compat.input_sizes, lambda x: x.index_select(2, INDEX), (2, 3, 4)),
        (compat.input_sizes, lambda x: x[:, INDEX], (2, 3, 4)),
        (compat.input_sizes, lambda x: x.mean(1), (2, 3, 4)),
        (compat.input_sizes, lambda x: x[:1].squeeze(0), (1, 3, 4)),
        (compat.input_sizes, lambda x: F.interpolate(x.unsqueeze(0), size=(6, 8), mode="bilinear"), (1, 2, 3, 4)),
        (compat.input_sizes, lambda x: F.interpolate(x.unsqueeze(0), size=(6, 8)), (1, 2, 3, 4)),
        (compat.output_count, lambda x: x.unbind(1)[2], None if TORCH_2_4 else 3),
        (compat.saved_dim, lambda x: x.select(-1, 0), -1),
        (compat.saved_dim, lambda x: x[:, 1:], 1),
        (compat.saved_dim, lambda x: x.split(2, -1)[0], -1),
        (compat.saved_dim, lambda x: x.unbind(1)[0], 1),
        (compat.saved_dim, lambda x: x.index_select(-2, INDEX), -2),
        (compat.saved_dim, lambda x: x.unsqueeze(2), 2),
        (compat.saved_dim, lambda x: torch.stack([x, x], 1), 1),
        (compat.reduced_dims, lambda x: x.mean(1), ([1], False)),
        (compat.reduced_dims, lambda x: x.mean((0, -1), keepdim=True), ([0, -1], True)),
        (compat.reduced_dims, lambda x: x.sum(-2), ([-2], False)),
        (compat.reduced_dims, lambda x: x.mean(), None),
        (compat.slice_bounds, lambda x: x[:, 1:3], (1, 3, 1)),
        (compat.slice_bounds, lambda x: x[:, -2::2], (-2, 2**63 - 1, 2)),
        (compat.selected_index, lambda x: x.select(1, 2), 2),
        (compat.selected_index, lambda x: x.select(1, -1), -1),
        (compat.split_sizes, lambda x: x.split(2, 2)[0], 2),
        (compat.split_sizes, lambda x: x.split([1, 3], 2)[0], [1, 3]),
        (compat.added_scale, lambda x: x + x, 1.0),
        (compat.added_scale, lambda x: torch.add(x, x, alpha=3), 3.0),
        (compat.added_scale, lambda x: torch.sub(x, x, alpha=2), -2.0),
        (compat.input_count, lambda x: torch.stack([x, x, x]), 3),
        (compat.input_count, lambda x: x.mean(1), 1),
        (compat.metadata_of, lambda x: x.mean(1), {}),
        (compat.is_opaque, lambda x: x.mean(1), False),
    ],
)
def test_what_a_node_keeps(function, expression, expected):
    assert function(node(expression)) == expected


def test_a_piece_of_a_model_in_one_node_is_opaque():
    output = checkpoint(torch.sin, leaf(2), use_reentrant=True)
    assert compat.is_opaque(output.grad_fn)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda x: x.permute(2, 0, 1), [2, 0, 1]),
        (lambda x: x.permute(-1, 0, 1), [2, 0, 1]),
        (lambda x: x.transpose(0, -1), [2, 1, 0]),
        (lambda x: x.mT, [0, 2, 1]),
        (lambda x: x[0].t(), [1, 0]),
    ],
)
def test_permuted_dims(expression, expected):
    assert compat.permuted_dims(node(expression), len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda x: x[INDEX % 2], [[0, 0]]),
        (lambda x: x[:, INDEX], [None, [2, 0]]),
        (lambda x: x[torch.tensor([True, False])], [[True, False]]),
    ],
)
def test_index_tensors(expression, expected):
    indices = compat.index_tensors(node(expression))
    assert [None if index is None else index.tolist() for index in indices] == expected


def test_index_tensor():
    assert compat.index_tensor(node(lambda x: x.index_select(2, INDEX))).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("expression", "number", "expected"),
    [
        (lambda x: x * 2, 0, 2.0),
        (lambda x: 3 * x, 0, 3.0),
        (lambda x: x * torch.tensor(4.0), 0, 4.0),
        (lambda x: torch.tensor(5.0) * x, 1, 5.0),
        (lambda x: x / 8, 0, 8.0),
        (lambda x: x / torch.tensor(7.0), 0, 7.0),
    ],
)
def test_saved_factor(expression, number, expected):
    assert float(compat.saved_factor(node(expression), number)) == expected


def test_saved_factor_of_an_input_without_gradient_is_not_kept():
    assert compat.saved_factor(node(lambda x: x * torch.tensor(2.0)), 1) is None


def test_saved_factor_can_no_longer_be_read_after_the_backward_pass():
    product = leaf(2).sin() * leaf(2)
    product.sum().backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        compat.saved_factor(product.grad_fn, 0)


def test_inputs_are_nodes_with_the_number_of_their_output_and_leaves_are_none():
    x = leaf(2, 4).sin()
    first, second = x.split(2, 1)
    assert compat.input_of((first + second).grad_fn, 1) == (second.grad_fn, 1)
    assert compat.input_of(x.grad_fn, 0) is None
    assert compat.input_of((x * 2).grad_fn, 1) is None
    assert compat.input_of(x.grad_fn, 1) is None


def test_nearest_nodes_are_those_above_breadth_first_and_at_most_so_many():
    x = leaf(2)
    total = x.sin() + x.cos().exp()
    names = [compat.operation_name(found) for found in compat.nearest_nodes(total.grad_fn)]
    assert names == ["Add", "Sin", "Exp", "Cos"]
    for _ in range(100):
        x = x.sin()
    assert len(list(compat.nearest_nodes(x.grad_fn))) == compat.MOST_NODES


def test_a_backward_pass_and_a_transform_are_noticed():
    seen = []
    x = leaf(2).sin()
    x.register_hook(lambda gradient: seen.append(compat.in_backward()))
    assert (compat.in_backward(), compat.in_transform()) == (False, False)
    x.sum().backward()
    assert seen == [True]

    def transformed(value):
        seen.append(compat.in_transform())
        return value.sum()

    torch.func.grad(transformed)(torch.ones(2))
    assert seen == [True, True]
    assert (compat.in_backward(), compat.in_transform()) == (False, False)


def test_forward_hooks_of_one_class_are_removed_and_others_stay():
    class Ours:
        def __call__(self, module, inputs, keywords, output):
            raise AssertionError

    layer, ours, calls = nn.Linear(2, 2), Ours(), []
    layer.register_forward_hook(lambda *arguments: calls.append(1))
    layer.register_forward_hook(ours, with_kwargs=True)
    assert compat.pop_forward_hooks(layer, Ours) == [ours]
    layer(torch.ones(1, 2))
    assert calls == [1]
    assert not layer._forward_hooks_with_kwargs


def test_replicas_and_join_are_noticed():
    layer = nn.Linear(2, 2)
    assert not compat.is_replica(layer)
    assert compat.is_replica(layer._replicate_for_data_parallel())
    assert not compat.is_joining()


def test_a_method_outside_graphs_is_called_as_it_is_without_the_compiler():
    assert compat.outside_graphs(lambda value, *, scale: value * scale)(3, scale=2) == 6
