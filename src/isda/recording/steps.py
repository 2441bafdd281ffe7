"""What may lie between a classifier and the logits: operations on places and samples, made again on the features."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from isda.recording.graph import kind_of
from isda.recording.picking import PICKING
from isda.recording.places import Place, Step, input_sizes, signed

__all__ = ["step_of"]

# The same numbers in another tensor, dtype or shape; the wrapper of DistributedDataParallel passes outputs on.
_SAME = re.compile(r"Clone|Alias|ToCopy|_DDPSink|torch::autograd::CopyBackwards")
_RESHAPING = re.compile(r"View|UnsafeView|ReshapeAlias|Squeeze")
_UPSAMPLING = re.compile(r"Upsample\w+")


def step_of(node: Any, place: int, shape: torch.Size) -> Step | None:
    """The operation of a node whose output number ``place`` has this shape, or None where it is none of these."""
    kind = kind_of(node)
    if _SAME.fullmatch(kind):
        return Step(node.name(), shape, lambda at: at)
    if _RESHAPING.fullmatch(kind):
        return Step(node.name(), input_sizes(node), lambda at: _reshaped(at, shape))
    if kind == "Unsqueeze":
        dim = signed(node._saved_dim) % len(shape)
        return Step(node.name(), torch.Size((*shape[:dim], *shape[dim + 1 :])), lambda at: _reshaped(at, shape))
    if _UPSAMPLING.fullmatch(kind):
        return Step(node.name(), input_sizes(node), lambda at: at._replace(shape=shape) if at.axis == 1 else None)
    make = _STEPS.get(kind)
    return None if make is None else make(node, place, shape)


def _reshaped(at: Place, shape: torch.Size) -> Place | None:
    if shape == at.shape:
        return at
    if at.is_coarse:
        return None
    before, after = at.shape[: at.axis].numel(), at.shape[at.axis + 1 :].numel()
    for axis, size in enumerate(shape):
        if (size, shape[:axis].numel(), shape[axis + 1 :].numel()) == (at.shape[at.axis], before, after):
            features = at.tensor
            return Place(features.reshape(*shape[:axis], features.shape[at.axis], *shape[axis + 1 :]), axis, shape)
    return None


def _permuted(node: Any, dims: Sequence[int], shape: torch.Size) -> Step:
    """Output dimension i is dimension dims[i] of the input."""

    def apply(at: Place) -> Place | None:
        return None if at.is_coarse else Place(at.tensor.permute(*dims), dims.index(at.axis), shape)

    return Step(node.name(), torch.Size(shape[dims.index(dim)] for dim in range(len(dims))), apply)


def _permute(node: Any, place: int, shape: torch.Size) -> Step:
    return _permuted(node, [signed(dim) % len(shape) for dim in node._saved_dims], shape)


def _transpose(node: Any, place: int, shape: torch.Size) -> Step:
    pair = (0, 1) if kind_of(node) == "T" else (signed(node._saved_dim0), signed(node._saved_dim1))
    dims, (first, second) = list(range(len(shape))), (dim % len(shape) for dim in pair)
    dims[first], dims[second] = second, first
    return _permuted(node, dims, shape)


def _mean(node: Any, place: int, shape: torch.Size) -> Step | None:
    if not hasattr(node, "_saved_dim"):  # over everything
        return None
    dims, keep = [signed(d) for d in node._saved_dim or ()], node._saved_keepdim

    def apply(at: Place) -> Place | None:
        over = sorted(d % len(at.shape) for d in dims) or list(range(len(at.shape)))
        if at.axis in over or at.is_coarse:
            return None
        axis = at.axis if keep else at.axis - sum(d < at.axis for d in over)
        return Place(at.tensor.mean(over, keepdim=keep), axis, shape)

    return Step(node.name(), input_sizes(node), apply)


_STEPS: dict[str, Callable[[Any, int, torch.Size], Step | None]] = {
    "Permute": _permute,
    "Transpose": _transpose,
    "T": _transpose,
    "Mean": _mean,
    **PICKING,
}
