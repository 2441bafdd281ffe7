"""Private interfaces of torch that isda uses: autograd nodes, functorch and the compiler.

tests/attach checks each of them against the supported versions of torch.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch._compile import _disable_dynamo

LEAF = "torch::autograd::AccumulateGrad"
# Whole pieces of a model in one node of the graph: reentrant activation checkpointing and torch.compile.
_OPAQUE = ("CheckpointFunctionBackward", "CompiledFunctionBackward")
_KIND = re.compile(r"(.+)Backward\d*")
_MOST_NODES = 64


def in_backward() -> bool:
    """Whether autograd is running a backward pass right now: a forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def in_transform() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is running: its tensors have no memory of their own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def metadata_of(node: Any) -> dict[Any, Any]:
    """The dictionary that every node carries."""
    return node.metadata  # the type stubs call it a method


def operation_name(node: Any) -> str:
    """The operation of a node: its name without Backward and a number."""
    found = _KIND.fullmatch(node.name())
    return node.name() if found is None else found[1]


def is_opaque(node: Any) -> bool:
    """Whether a whole piece of a model hides in this node."""
    return node.name() in _OPAQUE


def parents_of(node: Any) -> list[tuple[Any, int]]:
    """The nodes that made the inputs of the operation, each with the number of its output; no leaves."""
    return [(parent, place) for parent, place in node.next_functions if parent is not None and parent.name() != LEAF]


def nearest_nodes(start: Any) -> Iterator[Any]:
    """Nodes from ``start`` towards the inputs, breadth first, the nearest few."""
    waiting, seen = deque([start]), 0
    while waiting and seen < _MOST_NODES:
        node = waiting.popleft()
        seen += 1
        yield node
        waiting.extend(parent for parent, _ in parents_of(node))


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
