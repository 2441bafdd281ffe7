"""Stateless shuffling of an epoch into batches, and prefetching in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from isda.lab.seeds import generator

PREFETCH_WORKERS = 4

_Input = TypeVar("_Input")
_Output = TypeVar("_Output")


def batch_order(indices: Tensor, batch_size: int, *, seed: int, epoch: int, steps: int | None = None) -> Tensor:
    """(steps, batch_size) shuffled samples of an epoch in full batches; the remainder is dropped.

    With ``steps`` there are so many batches, from as many shuffled passes over the samples as that takes.

    Example:
        >>> batch_order(torch.arange(5), 2, seed=0, epoch=0).shape
        torch.Size([2, 2])
    """
    steps = len(indices) // batch_size if steps is None else steps
    source = generator(seed, epoch)
    passes = max(1, -(-steps * batch_size // len(indices)))
    shuffled = torch.cat([indices[torch.randperm(len(indices), generator=source)] for _ in range(passes)])
    return shuffled[: steps * batch_size].view(steps, batch_size)


def prefetch(
    prepare: Callable[[_Input], _Output], parts: Sequence[_Input], workers: int = PREFETCH_WORKERS
) -> Iterator[_Output]:
    """Yield ``prepare(part)`` for each part in order, computed ahead by ``workers`` threads.

    Example:
        >>> list(prefetch(str.upper, ["a", "b", "c"], workers=2))
        ['A', 'B', 'C']
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(pool.submit(prepare, part) for part in parts[:workers])
        try:
            for part in parts[workers:]:
                yield waiting.popleft().result()
                waiting.append(pool.submit(prepare, part))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
