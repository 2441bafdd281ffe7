"""Linear operations between a classifier and the logits, replayed on the recorded features: reshaping, permuting,
indexing, slicing, upsampling, averaging and stacking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.attach.autograd_compat import (
    index_tensor,
    index_tensors,
    input_of,
    input_sizes,
    operation_name,
    output_count,
    permuted_dims,
    reduced_dims,
    saved_dim,
    selected_index,
    slice_bounds,
    split_sizes,
)
from isda.attach.hook import EXPLICIT_CALL
from isda.functional.patches import Patches


class TracedFeatures(NamedTuple):
    """Features on their way from the classifier's output to the logits.

    Attributes:
        features: (..., A, ...), or patches that stand for maps (N, A, h, w).
        axis: which dimension is A, where the output has its C classes.
        shape: the shape of the output at this point; it may have a finer grid than the features.
    """

    features: Tensor | Patches
    axis: int
    shape: torch.Size

    @property
    def is_coarse(self) -> bool:
        """Whether the output was upsampled since."""
        if isinstance(self.features, Patches):
            return self.shape[2:] != self.features.grid
        return _other_sizes(self.features.shape, self.axis) != _other_sizes(self.shape, self.axis)

    @property
    def tensor(self) -> Tensor:
        """The features as a tensor."""
        return self.features.maps() if isinstance(self.features, Patches) else self.features


class TracedOperation(NamedTuple):
    """One operation.

    Attributes:
        name: of its node in the graph.
        before: the shape of its input.
        apply: what it does to features; None where it mixes classes, or pixels that were upsampled.
        key: which samples or pixels it selects, comparable; None where it selects none.
    """

    name: str
    before: torch.Size
    apply: Callable[[TracedFeatures], TracedFeatures | None]
    key: Hashable = None

    def __call__(self, traced: TracedFeatures) -> TracedFeatures:
        """Apply the operation, or raise where it works on the classes."""
        after = self.apply(traced)
        if after is None:
            raise ValueError(
                f"the logits come from the classifier through {self.name}, which mixes classes, or pixels that were "
                f"upsampled; call {EXPLICIT_CALL} with the features that belong to these logits"
            )
        return after


def _other_sizes(shape: torch.Size, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


# -- indexing --------------------------------------------------------------------------------------------------------


def _selection(
    node: Any, key: Hashable, select: Callable[[Tensor, int], Tensor], shape: torch.Size, before: torch.Size
) -> TracedOperation:
    """An operation that selects from one dimension of features and output alike."""
    dim = saved_dim(node)

    def apply(traced: TracedFeatures) -> TracedFeatures | None:
        along = dim % len(traced.shape)
        # Of an output that was upsampled, samples can be selected, but no pixels.
        if along == traced.axis or (traced.is_coarse and along != 0):
            return None
        dropped = len(shape) < len(traced.shape) and along < traced.axis
        return TracedFeatures(select(traced.tensor, along), traced.axis - dropped, shape)

    return TracedOperation(node.name(), before, apply, (node.name(), dim, key))


def _slice(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    bounds, before = slice_bounds(node), input_sizes(node)
    if shape == before and bounds[2] == 1:  # x[:], as older versions of torch record it beside an index
        return TracedOperation(node.name(), before, lambda traced: traced, (node.name(), "all"))

    def select(features: Tensor, dim: int) -> Tensor:
        return features[(slice(None),) * dim + (slice(*bounds),)]

    return _selection(node, bounds, select, shape, before)


def _select(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    index = selected_index(node)
    return _selection(node, index, lambda features, dim: features.select(dim, index), shape, input_sizes(node))


def _unbind(node: Any, output: int, shape: torch.Size) -> TracedOperation | None:
    parts = output_count(node)
    if parts is None:
        return None
    dim = saved_dim(node) % (len(shape) + 1)
    before = torch.Size((*shape[:dim], parts, *shape[dim:]))
    return _selection(node, output, lambda features, dim: features.select(dim, output), shape, before)


def _split(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    sizes = split_sizes(node)
    return _selection(node, (str(sizes), output), lambda f, dim: f.split(sizes, dim)[output], shape, input_sizes(node))


def _index_select(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    index = index_tensor(node)
    key = _identity(index)
    return _selection(node, key, lambda features, dim: features.index_select(dim, index), shape, input_sizes(node))


def _index(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    given = index_tensors(node)

    def apply(traced: TracedFeatures) -> TracedFeatures | None:
        indices = _as_positions(given, shape)
        used = [dim for dim, index in enumerate(indices) if index is not None]
        if traced.axis in used or (traced.is_coarse and used != [0]):
            return None
        features = traced.tensor[tuple(slice(None) if index is None else index for index in indices)]
        new = torch.broadcast_shapes(*(indices[dim].shape for dim in used))  # type: ignore[union-attr]
        if used == list(range(used[0], used[-1] + 1)):
            axis = traced.axis if traced.axis < used[0] else traced.axis - len(used) + len(new)
        else:  # the dimensions of the index come first
            axis = len(new) + sum(dim not in used for dim in range(traced.axis))
        return TracedFeatures(features, axis, shape)

    return TracedOperation(node.name(), input_sizes(node), apply, (node.name(), tuple(map(_identity, given))))


def _as_positions(indices: Sequence[Tensor | None], shape: torch.Size) -> list[Tensor | None]:
    """Indices with every mask turned into positions. The result's shape has their number: no device has to wait."""
    positions: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            positions.append(index)
            continue
        count = shape[next((dim for dim, i in enumerate(indices) if i is not None), 0)]
        chosen = index.flatten().bool().logical_not().to(torch.uint8).argsort(stable=True)[:count]
        positions.extend(chosen // index.shape[dim + 1 :].numel() % size for dim, size in enumerate(index.shape))
    return positions


def _identity(index: Tensor | None) -> Hashable:
    return None if index is None else (index.data_ptr(), tuple(index.shape), index._version)


# -- shapes, dimensions and means ------------------------------------------------------------------------------------


def _reshaped(traced: TracedFeatures, shape: torch.Size) -> TracedFeatures | None:
    if shape == traced.shape:
        return traced
    if traced.is_coarse:
        return None
    before, after = traced.shape[: traced.axis].numel(), traced.shape[traced.axis + 1 :].numel()
    for axis, size in enumerate(shape):
        if (size, shape[:axis].numel(), shape[axis + 1 :].numel()) == (traced.shape[traced.axis], before, after):
            features = traced.tensor
            sizes = (*shape[:axis], features.shape[traced.axis], *shape[axis + 1 :])
            return TracedFeatures(features.reshape(sizes), axis, shape)
    return None


def _permute(node: Any, output: int, shape: torch.Size) -> TracedOperation:
    dims = permuted_dims(node, len(shape))

    def apply(traced: TracedFeatures) -> TracedFeatures | None:
        if traced.is_coarse:
            return None
        return TracedFeatures(traced.tensor.permute(*dims), dims.index(traced.axis), shape)

    return TracedOperation(node.name(), torch.Size(shape[dims.index(dim)] for dim in range(len(dims))), apply)


def _mean(node: Any, output: int, shape: torch.Size) -> TracedOperation | None:
    reduced = reduced_dims(node)
    if reduced is None:
        return None
    dims, keepdim = reduced

    def apply(traced: TracedFeatures) -> TracedFeatures | None:
        over = sorted(dim % len(traced.shape) for dim in dims) or list(range(len(traced.shape)))
        if traced.axis in over or traced.is_coarse:
            return None
        axis = traced.axis if keepdim else traced.axis - sum(dim < traced.axis for dim in over)
        return TracedFeatures(traced.tensor.mean(over, keepdim=keepdim), axis, shape)

    return TracedOperation(node.name(), input_sizes(node), apply)


# The same numbers in another tensor, dtype or shape; the wrapper of DistributedDataParallel passes outputs on.
_SAME = re.compile(r"Clone|Alias|ToCopy|_DDPSink|torch::autograd::CopyBackwards")
_RESHAPING = re.compile(r"View|UnsafeView|ReshapeAlias|Squeeze")
_UPSAMPLING = re.compile(r"Upsample\w+")
_OPERATIONS: dict[str, Callable[[Any, int, torch.Size], TracedOperation | None]] = {
    "Permute": _permute,
    "Transpose": _permute,
    "T": _permute,
    "Mean": _mean,
    "Slice": _slice,
    "Select": _select,
    "Unbind": _unbind,
    "Split": _split,
    "SplitWithSizes": _split,
    "IndexSelect": _index_select,
    "Index": _index,
}
"""By name: the operation of a node, the number of its output and the shape of that output."""


def operation_of(node: Any, output: int, shape: torch.Size) -> TracedOperation | None:
    """The operation of a node whose output of this number has this shape, or None where it is none of these."""
    name = operation_name(node)
    if _SAME.fullmatch(name):
        return TracedOperation(node.name(), shape, lambda traced: traced)
    if _RESHAPING.fullmatch(name):
        return TracedOperation(node.name(), input_sizes(node), lambda traced: _reshaped(traced, shape))
    if name == "Unsqueeze":
        before = torch.Size(_other_sizes(shape, saved_dim(node) % len(shape)))
        return TracedOperation(node.name(), before, lambda traced: _reshaped(traced, shape))
    if _UPSAMPLING.fullmatch(name):
        return TracedOperation(
            node.name(), input_sizes(node), lambda traced: traced._replace(shape=shape) if traced.axis == 1 else None
        )
    make = _OPERATIONS.get(name)
    return None if make is None else make(node, output, shape)


def stacked_inputs(node: Any) -> tuple[Any, float] | None:
    """The node of the stack that a mean or a sum reduces, and the factor of each tensor in it; None for others."""
    name = operation_name(node)
    reduced = reduced_dims(node) if name in ("Mean", "Sum") else None
    parent = input_of(node, 0)
    if reduced is None or reduced[1] or parent is None or operation_name(parent[0]) != "Stack":
        return None
    sizes = input_sizes(node)
    dim = saved_dim(parent[0]) % len(sizes)
    if [over % len(sizes) for over in reduced[0]] != [dim]:
        return None
    return parent[0], 1.0 if name == "Sum" else 1 / sizes[dim]
