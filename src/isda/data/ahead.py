"""Things made in threads a few before they are needed, and given out in order: decoding does not wait for training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["WORKERS", "ahead"]

WORKERS = 4

_Part = TypeVar("_Part")
_Made = TypeVar("_Made")


def ahead(prepare: Callable[[_Part], _Made], parts: Sequence[_Part], workers: int = WORKERS) -> Iterator[_Made]:
    """What ``prepare`` makes of each part, in their order; ``workers`` of them are under way at a time.

    Example:
        >>> list(ahead(str.upper, ["a", "b", "c"], workers=2))
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
