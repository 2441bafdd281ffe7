"""What a loss step asks of a machine, counted as it runs: operations, bytes read and written, and kernel launches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from isda import ISDALoss
from steps import STRENGTH, Shape

aten = torch.ops.aten
_FREE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten._unsafe_view, aten.lift_fresh}
_GATHERS = {aten.index_select, aten.gather, aten.take, aten.index}
"""They read as much as they write, not the whole of their input."""


class Work(NamedTuple):
    """Of one step."""

    flops: float
    """Floating point operations of the matrix products."""
    bytes: float
    """That operations read and write."""
    launches: float
    """Operations other than views and allocations."""


class WorkCounter(TorchDispatchMode):
    """Counts the work of what runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work(0, 0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func._overloadpacket
        aliases = [output.alias_info for output in func._schema.returns]
        if packet in _FREE or any(alias is not None and not alias.is_write for alias in aliases):
            return result
        count = flop_registry.get(packet) or flop_registry.get(getattr(aten, packet.__name__.rstrip("_"), None))
        flops = count(*args, **{k: v for k, v in kwargs.items() if k != "out"}, out_val=result) if count else 0
        touched = (result, result) if packet in _GATHERS else (args, kwargs, result)
        moved = sum(_bytes(leaf) for leaf in tree_leaves(touched) if isinstance(leaf, Tensor))
        self.work = Work(self.work.flops + flops, self.work.bytes + moved, self.work.launches + 1)
        return result


def _bytes(tensor: Tensor) -> int:
    """What a tensor holds in memory; an expanded dimension is read from the same place."""
    if not tensor.numel():
        return 0
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return tensor.element_size() * math.prod(sizes)


def make_step(bound: str, shape: Shape, **settings: Any) -> Callable[[], None]:
    """Statistics, loss and gradients of logits and weights for given logits; min(N, C) classes occur."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(shape.n, shape.a, generator=generator)
    targets = torch.arange(shape.n) % shape.c
    weight = (torch.randn(shape.c, shape.a, generator=generator) / shape.a**0.5).requires_grad_()
    logits = torch.randn(shape.n, shape.c, generator=generator).requires_grad_()
    criterion = ISDALoss(
        shape.c, shape.a, STRENGTH, covariance=shape.covariance, bound=bound, schedule="constant", **settings
    )

    def step() -> None:
        criterion(logits, targets, features=features, weight=weight).backward()
        weight.grad = logits.grad = None

    return step


def count(step: Callable[[], None], warm_up: int = 2) -> Work:
    """The work of a step after a few others."""
    for _ in range(warm_up):
        step()
    with WorkCounter() as counter:
        step()
    return counter.work
