"""Linear operations between a classifier and the logits, replayed on the recorded features: reshaping, permuting,
indexing, slicing, upsampling, averaging and stacking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.attach.autograd_compat import operation_name
from isda.attach.hook import EXPLICIT_CALL
from isda.functional.patches import Patches


class TracedFeatures(NamedTuple):
    """Features on their way from the classifier's output to the logits.

    Attributes:
        features: (..., A, ...), or patches that stand for maps (N, A, h, w).
        axis: which dimension is A, where the output has its C classes.
        shape: the shape of the output at this point; its places may be finer than those of the features.
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
        """The features, patches made."""
        return self.features.maps() if isinstance(self.features, Patches) else self.features


class TracedOperation(NamedTuple):
    """One operation.

    Attributes:
        name: of its node in the graph.
        before: the shape of its input.
        apply: what it does to features.
        key: which samples or places it picks, comparable; None where it picks none.
    """

    name: str
    before: torch.Size
    apply: Callable[[TracedFeatures], TracedFeatures | None]
    key: Hashable = None

    def __call__(self, place: TracedFeatures) -> TracedFeatures:
        """Follow the operation, or raise where it works on the classes."""
        after = self.apply(place)
        if after is None:
            raise ValueError(
                f"the logits come from the classifier through {self.name}, which mixes classes, or places that were "
                f"upsampled; call {EXPLICIT_CALL} with the features that belong to these logits"
            )
        return after


def input_sizes(node: Any) -> torch.Size:
    """The shape of the input of an operation, where its node keeps it."""
    return torch.Size(node._saved_self_sym_sizes)


def as_signed(value: int) -> int:
    """Negative dimensions and positions are kept as unsigned numbers in the graph."""
    return value - 2**64 if value >= 2**63 else value


def _other_sizes(shape: torch.Size, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _picked(
    node: Any, key: Hashable, pick: Callable[[Tensor, int], Tensor], shape: torch.Size, before: torch.Size
) -> TracedOperation:
    """A step that takes some of one dimension alike from features and output."""
    dim = as_signed(node._saved_dim)

    def apply(at: TracedFeatures) -> TracedFeatures | None:
        along = dim % len(at.shape)
        # Of an output that was upsampled, samples can be picked, but no places.
        if along == at.axis or (at.is_coarse and along != 0):
            return None
        dropped = len(shape) < len(at.shape) and along < at.axis
        return TracedFeatures(pick(at.tensor, along), at.axis - dropped, shape)

    return TracedOperation(node.name(), before, apply, (node.name(), dim, key))


def _slice(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    start, end, step = as_signed(node._saved_start), as_signed(node._saved_end), node._saved_step

    def pick(features: Tensor, dim: int) -> Tensor:
        return features[(slice(None),) * dim + (slice(start, end, step),)]

    return _picked(node, (start, end, step), pick, shape, input_sizes(node))


def _select(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    index = as_signed(node._saved_index)
    return _picked(node, index, lambda features, dim: features.select(dim, index), shape, input_sizes(node))


def _unbind(node: Any, place: int, shape: torch.Size) -> TracedOperation | None:
    if not hasattr(node, "_input_metadata"):  # torch 2.4 does not tell how many parts there are
        return None
    dim, parts = as_signed(node._saved_dim) % (len(shape) + 1), len(node._input_metadata)
    before = torch.Size((*shape[:dim], parts, *shape[dim:]))
    return _picked(node, place, lambda features, dim: features.select(dim, place), shape, before)


def _split(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    sizes = node._saved_split_size if operation_name(node) == "Split" else list(node._saved_split_sizes)
    return _picked(node, (str(sizes), place), lambda f, dim: f.split(sizes, dim)[place], shape, input_sizes(node))


def _index_select(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    index = node._saved_index
    key = _identity(index)
    return _picked(node, key, lambda features, dim: features.index_select(dim, index), shape, input_sizes(node))


def _index(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    given = tuple(node._saved_indices)

    def apply(at: TracedFeatures) -> TracedFeatures | None:
        indices = _as_positions(given, shape)
        used = [dim for dim, index in enumerate(indices) if index is not None]
        if at.axis in used or (at.is_coarse and used != [0]):
            return None
        features = at.tensor[tuple(slice(None) if index is None else index for index in indices)]
        new = torch.broadcast_shapes(*(indices[dim].shape for dim in used))  # type: ignore[union-attr]
        if used == list(range(used[0], used[-1] + 1)):
            axis = at.axis if at.axis < used[0] else at.axis - len(used) + len(new)
        else:  # the dimensions of the index come first
            axis = len(new) + sum(dim not in used for dim in range(at.axis))
        return TracedFeatures(features, axis, shape)

    key = tuple(None if index is None else _identity(index) for index in given)
    return TracedOperation(node.name(), input_sizes(node), apply, (node.name(), key))


def _as_positions(indices: Sequence[Tensor | None], shape: torch.Size) -> list[Tensor | None]:
    """Indices with every mask turned into positions. Their number is known from the result: nobody has to wait."""
    positions: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            positions.append(index)
            continue
        count = shape[next((dim for dim, i in enumerate(indices) if i is not None), 0)]
        held = index.flatten().bool().logical_not().to(torch.uint8).argsort(stable=True)[:count]
        positions.extend(held // index.shape[dim + 1 :].numel() % size for dim, size in enumerate(index.shape))
    return positions


def _identity(index: Tensor) -> Hashable:
    return (index.data_ptr(), tuple(index.shape), index._version)


INDEXING_OPERATIONS: dict[str, Callable[[Any, int, torch.Size], TracedOperation | None]] = {
    "Slice": _slice,
    "Select": _select,
    "Unbind": _unbind,
    "Split": _split,
    "SplitWithSizes": _split,
    "IndexSelect": _index_select,
    "Index": _index,
}
"""By operation: node, number of its output and shape of that to a step."""


# The same numbers in another tensor, dtype or shape; the wrapper of DistributedDataParallel passes outputs on.
_SAME = re.compile(r"Clone|Alias|ToCopy|_DDPSink|torch::autograd::CopyBackwards")
_RESHAPING = re.compile(r"View|UnsafeView|ReshapeAlias|Squeeze")
_UPSAMPLING = re.compile(r"Upsample\w+")


def operation_of(node: Any, place: int, shape: torch.Size) -> TracedOperation | None:
    """The operation of a node whose output number ``place`` has this shape, or None where it is none of these."""
    kind = operation_name(node)
    if _SAME.fullmatch(kind):
        return TracedOperation(node.name(), shape, lambda at: at)
    if _RESHAPING.fullmatch(kind):
        return TracedOperation(node.name(), input_sizes(node), lambda at: _reshaped(at, shape))
    if kind == "Unsqueeze":
        dim = as_signed(node._saved_dim) % len(shape)
        return TracedOperation(
            node.name(), torch.Size((*shape[:dim], *shape[dim + 1 :])), lambda at: _reshaped(at, shape)
        )
    if _UPSAMPLING.fullmatch(kind):
        return TracedOperation(
            node.name(), input_sizes(node), lambda at: at._replace(shape=shape) if at.axis == 1 else None
        )
    make = _STEPS.get(kind)
    return None if make is None else make(node, place, shape)


def _reshaped(at: TracedFeatures, shape: torch.Size) -> TracedFeatures | None:
    if shape == at.shape:
        return at
    if at.is_coarse:
        return None
    before, after = at.shape[: at.axis].numel(), at.shape[at.axis + 1 :].numel()
    for axis, size in enumerate(shape):
        if (size, shape[:axis].numel(), shape[axis + 1 :].numel()) == (at.shape[at.axis], before, after):
            features = at.tensor
            return TracedFeatures(
                features.reshape(*shape[:axis], features.shape[at.axis], *shape[axis + 1 :]), axis, shape
            )
    return None


def _permuted(node: Any, dims: Sequence[int], shape: torch.Size) -> TracedOperation:
    """Output dimension i is dimension dims[i] of the input."""

    def apply(at: TracedFeatures) -> TracedFeatures | None:
        return None if at.is_coarse else TracedFeatures(at.tensor.permute(*dims), dims.index(at.axis), shape)

    return TracedOperation(node.name(), torch.Size(shape[dims.index(dim)] for dim in range(len(dims))), apply)


def _permute(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    return _permuted(node, [as_signed(dim) % len(shape) for dim in node._saved_dims], shape)


def _transpose(node: Any, place: int, shape: torch.Size) -> TracedOperation:
    pair = (0, 1) if operation_name(node) == "T" else (as_signed(node._saved_dim0), as_signed(node._saved_dim1))
    dims, (first, second) = list(range(len(shape))), (dim % len(shape) for dim in pair)
    dims[first], dims[second] = second, first
    return _permuted(node, dims, shape)


def _mean(node: Any, place: int, shape: torch.Size) -> TracedOperation | None:
    if not hasattr(node, "_saved_dim"):  # over everything
        return None
    dims, keep = [as_signed(d) for d in node._saved_dim or ()], node._saved_keepdim

    def apply(at: TracedFeatures) -> TracedFeatures | None:
        over = sorted(d % len(at.shape) for d in dims) or list(range(len(at.shape)))
        if at.axis in over or at.is_coarse:
            return None
        axis = at.axis if keep else at.axis - sum(d < at.axis for d in over)
        return TracedFeatures(at.tensor.mean(over, keepdim=keep), axis, shape)

    return TracedOperation(node.name(), input_sizes(node), apply)


_STEPS: dict[str, Callable[[Any, int, torch.Size], TracedOperation | None]] = {
    "Permute": _permute,
    "Transpose": _transpose,
    "T": _transpose,
    "Mean": _mean,
    **INDEXING_OPERATIONS,
}


def stacked_inputs(node: Any) -> tuple[Any, float] | None:
    """The node of the stack that a mean or a sum takes away, and the factor of each tensor in it; None for others."""
    kind = operation_name(node)
    if kind not in ("Mean", "Sum") or not getattr(node, "_saved_dim", None) or node._saved_keepdim:
        return None
    stack = node.next_functions[0][0]
    if stack is None or operation_name(stack) != "Stack":
        return None
    sizes = input_sizes(node)
    dim = as_signed(stack._saved_dim) % len(sizes)
    if [as_signed(over) % len(sizes) for over in node._saved_dim] != [dim]:
        return None
    return stack, 1.0 if kind == "Sum" else 1 / sizes[dim]
