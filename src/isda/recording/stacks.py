"""Outputs that are stacked, and averaged or added up along the new dimension: a sum of them, written another way."""

from __future__ import annotations

from typing import Any

from isda.recording.graph import kind_of
from isda.recording.places import input_sizes, signed

__all__ = ["stack_under"]


def stack_under(node: Any) -> tuple[Any, float] | None:
    """The node of the stack that a mean or a sum takes away, and the factor of each tensor in it; None for others."""
    kind = kind_of(node)
    if kind not in ("Mean", "Sum") or not getattr(node, "_saved_dim", None) or node._saved_keepdim:
        return None
    stack = node.next_functions[0][0]
    if stack is None or kind_of(stack) != "Stack":
        return None
    sizes = input_sizes(node)
    dim = signed(stack._saved_dim) % len(sizes)
    if [signed(over) % len(sizes) for over in node._saved_dim] != [dim]:
        return None
    return stack, 1.0 if kind == "Sum" else 1 / sizes[dim]
