"""Private interfaces of torch that isda uses: fields of autograd nodes, functorch, hooks and the compiler.

Nothing else in isda.attach reads a private field of a node. tests/attach/test_autograd_compat.py checks every function
with the installed torch, and ``make test-oldest`` with the oldest supported one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from isda._utils.devices import in_transform as in_transform

MOST_NODES = 64
"""How many nodes of a graph are looked at."""
_LEAF = "torch::autograd::AccumulateGrad"
# Whole pieces of a model in one node of the graph: reentrant activation checkpointing and torch.compile.
_OPAQUE = ("CheckpointFunctionBackward", "CompiledFunctionBackward")
_NAME = re.compile(r"(.+)Backward\d*")


def in_backward() -> bool:
    """Whether autograd is running a backward pass right now: a forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


# -- nodes of the graph ----------------------------------------------------------------------------------------------


def metadata_of(node: Any) -> dict[Any, Any]:
    """The dictionary that every node carries."""
    return node.metadata  # the type stubs call it a method


def operation_name(node: Any) -> str:
    """The operation of a node: its name without Backward and a number."""
    match = _NAME.fullmatch(node.name())
    return node.name() if match is None else match[1]


def is_opaque(node: Any) -> bool:
    """Whether the node stands for a whole piece of a model."""
    return node.name() in _OPAQUE


def input_count(node: Any) -> int:
    """The number of inputs of the operation."""
    return len(node.next_functions)


def input_of(node: Any, number: int) -> tuple[Any, int] | None:
    """The node that made an input of the operation, and which of its outputs it is; None for leaves and constants."""
    if number >= len(node.next_functions):
        return None
    parent, output = node.next_functions[number]
    return None if parent is None or parent.name() == _LEAF else (parent, output)


def nearest_nodes(start: Any) -> Iterator[Any]:
    """Nodes from ``start`` towards the inputs, breadth first, the nearest ``MOST_NODES``."""
    waiting, seen = deque([start]), 0
    while waiting and seen < MOST_NODES:
        node = waiting.popleft()
        seen += 1
        yield node
        parents = (input_of(node, number) for number in range(input_count(node)))
        waiting.extend(parent[0] for parent in parents if parent is not None)


# -- what a node keeps of its operation; negative dimensions and positions are kept as unsigned numbers --------------


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def input_sizes(node: Any) -> torch.Size:
    """The shape of the input of a view, reduction or upsampling."""
    return torch.Size(node._saved_self_sym_sizes)


def output_count(node: Any) -> int | None:
    """The number of outputs of unbind; None with torch 2.4, which does not keep it."""
    return len(node._input_metadata) if hasattr(node, "_input_metadata") else None


def saved_dim(node: Any) -> int:
    """The dimension of select, slice, split, unbind, index_select, unsqueeze and stack."""
    return _signed(node._saved_dim)


def reduced_dims(node: Any) -> tuple[list[int], bool] | None:
    """The dimensions of a mean or sum and its keepdim; None for one over everything."""
    if not hasattr(node, "_saved_dim"):
        return None
    return [_signed(dim) for dim in node._saved_dim or ()], node._saved_keepdim


def permuted_dims(node: Any, ndim: int) -> list[int]:
    """Of permute, transpose and t(): output dimension i is dimension dims[i] of the input."""
    if operation_name(node) == "Permute":
        return [_signed(dim) % ndim for dim in node._saved_dims]
    pair = (0, 1) if operation_name(node) == "T" else (_signed(node._saved_dim0), _signed(node._saved_dim1))
    dims, (first, second) = list(range(ndim)), (dim % ndim for dim in pair)
    dims[first], dims[second] = second, first
    return dims


def slice_bounds(node: Any) -> tuple[int, int, int]:
    """Start, end and step of a slice."""
    return _signed(node._saved_start), _signed(node._saved_end), node._saved_step


def selected_index(node: Any) -> int:
    """The index of select."""
    return _signed(node._saved_index)


def split_sizes(node: Any) -> int | list[int]:
    """The argument of split."""
    return node._saved_split_size if operation_name(node) == "Split" else list(node._saved_split_sizes)


def index_tensor(node: Any) -> Tensor:
    """The index of index_select."""
    return node._saved_index


def index_tensors(node: Any) -> tuple[Tensor | None, ...]:
    """The indices of indexing with tensors; None for a whole dimension."""
    return tuple(node._saved_indices)


def added_scale(node: Any) -> float:
    """The number that add or sub multiplies its second input by."""
    return float(node._saved_alpha if operation_name(node) == "Add" else -node._saved_alpha)


def saved_factor(node: Any, number: int) -> Tensor | None:
    """What mul multiplies, and div divides, input ``number`` by; None where the gradient does not need it."""
    return node._saved_other if number == 0 else node._saved_self


# -- modules ---------------------------------------------------------------------------------------------------------


def is_replica(module: nn.Module) -> bool:
    """Whether nn.DataParallel has made the module."""
    return getattr(module, "_is_replica", False)


def is_joining() -> bool:
    """Whether a DistributedDataParallel that runs right now does so inside its join()."""
    wrapper = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    return wrapper is not None and wrapper._join_config.enable


def pop_forward_hooks(module: nn.Module, kind: type) -> Sequence[Any]:
    """Remove the forward hooks of this class from a module, and return them."""
    hooks = [(key, hook) for key, hook in module._forward_hooks.items() if isinstance(hook, kind)]
    for key, _ in hooks:
        del module._forward_hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)
    return [hook for _, hook in hooks]


# -- the compiler and torch.func -------------------------------------------------------------------------------------

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_graphs(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Break the graph of torch.compile around ``method``; without torch.compile it is called as it is.

    Statistics, schedules and features recorded on the host are no business of a graph. The compiler is not even
    imported unless it runs: that would take 1.5 s and 160 MB.
    """
    disabled = _disable_dynamo(method)

    @wraps(method)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if torch.compiler.is_compiling():
            return disabled(*args, **kwargs)
        return method(*args, **kwargs)

    return call


def refuse_transforms(criterion: nn.Module) -> None:
    """Raise ValueError inside torch.func.grad, vmap and the like, which cannot follow statistics that change."""
    if in_transform():
        raise ValueError(
            f"{type(criterion).__name__} must be called outside of torch.func.grad, torch.vmap and other transforms of "
            "torch.func, which cannot follow its statistics; use loss.backward() or torch.autograd.grad, or "
            "criterion.eval() for plain cross-entropy"
        )
