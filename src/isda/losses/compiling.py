"""Criteria inside a compiled training step, outside whose graphs they run, and inside torch.func, where they do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import nn
from torch._compile import _disable_dynamo  # torch.compiler.disable, but it imports the compiler at the first call only

from isda.recording import in_transform

__all__ = ["outside_graphs", "refuse_transforms"]

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
