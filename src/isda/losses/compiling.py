"""Criteria inside a compiled training step: they run outside its graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable, but it imports the compiler at the first call only

__all__ = ["outside_graphs"]

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
