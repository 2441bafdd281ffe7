"""Samples, tokens and places that are picked from a classifier's output, picked alike from its features."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from isda.recording.graph import kind_of
from isda.recording.places import Place, Step, input_sizes, signed

__all__ = ["PICKING"]


def _picked(
    node: Any, key: Hashable, pick: Callable[[Tensor, int], Tensor], shape: torch.Size, before: torch.Size
) -> Step:
    """A step that takes some of one dimension alike from features and output."""
    dim = signed(node._saved_dim)

    def apply(at: Place) -> Place | None:
        along = dim % len(at.shape)
        # Of an output that was upsampled, samples can be picked, but no places.
        if along == at.axis or (at.is_coarse and along != 0):
            return None
        dropped = len(shape) < len(at.shape) and along < at.axis
        return Place(pick(at.tensor, along), at.axis - dropped, shape)

    return Step(node.name(), before, apply, (node.name(), dim, key))


def _slice(node: Any, place: int, shape: torch.Size) -> Step:
    start, end, step = signed(node._saved_start), signed(node._saved_end), node._saved_step

    def pick(features: Tensor, dim: int) -> Tensor:
        return features[(slice(None),) * dim + (slice(start, end, step),)]

    return _picked(node, (start, end, step), pick, shape, input_sizes(node))


def _select(node: Any, place: int, shape: torch.Size) -> Step:
    index = signed(node._saved_index)
    return _picked(node, index, lambda features, dim: features.select(dim, index), shape, input_sizes(node))


def _unbind(node: Any, place: int, shape: torch.Size) -> Step | None:
    if not hasattr(node, "_input_metadata"):  # torch 2.4 does not tell how many parts there are
        return None
    dim, parts = signed(node._saved_dim) % (len(shape) + 1), len(node._input_metadata)
    before = torch.Size((*shape[:dim], parts, *shape[dim:]))
    return _picked(node, place, lambda features, dim: features.select(dim, place), shape, before)


def _split(node: Any, place: int, shape: torch.Size) -> Step:
    sizes = node._saved_split_size if kind_of(node) == "Split" else list(node._saved_split_sizes)
    return _picked(node, (str(sizes), place), lambda f, dim: f.split(sizes, dim)[place], shape, input_sizes(node))


def _index_select(node: Any, place: int, shape: torch.Size) -> Step:
    index = node._saved_index
    key = _identity(index)
    return _picked(node, key, lambda features, dim: features.index_select(dim, index), shape, input_sizes(node))


def _index(node: Any, place: int, shape: torch.Size) -> Step:
    given = tuple(node._saved_indices)

    def apply(at: Place) -> Place | None:
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
        return Place(features, axis, shape)

    key = tuple(None if index is None else _identity(index) for index in given)
    return Step(node.name(), input_sizes(node), apply, (node.name(), key))


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


PICKING: dict[str, Callable[[Any, int, torch.Size], Step | None]] = {
    "Slice": _slice,
    "Select": _select,
    "Unbind": _unbind,
    "Split": _split,
    "SplitWithSizes": _split,
    "IndexSelect": _index_select,
    "Index": _index,
}
"""By operation: node, number of its output and shape of that to a step."""
