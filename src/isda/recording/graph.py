"""Nodes of the autograd graph: what they carry, and where they lead."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["LEAF", "in_backward", "in_transform", "is_opaque", "kind_of", "metadata_of", "parents_of", "walk"]

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


def kind_of(node: Any) -> str:
    """The operation of a node: its name without Backward and a number."""
    found = _KIND.fullmatch(node.name())
    return node.name() if found is None else found[1]


def is_opaque(node: Any) -> bool:
    """Whether a whole piece of a model hides in this node."""
    return node.name() in _OPAQUE


def parents_of(node: Any) -> list[tuple[Any, int]]:
    """The nodes that made the inputs of the operation, each with the number of its output; no leaves."""
    return [(parent, place) for parent, place in node.next_functions if parent is not None and parent.name() != LEAF]


def walk(start: Any) -> Iterator[Any]:
    """Nodes from ``start`` towards the inputs, breadth first, the nearest few."""
    waiting, seen = deque([start]), 0
    while waiting and seen < _MOST_NODES:
        node = waiting.popleft()
        seen += 1
        yield node
        waiting.extend(parent for parent, _ in parents_of(node))
