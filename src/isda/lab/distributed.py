"""Collectives of torch.distributed that do nothing in a single process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes that train together; 1 when torch.distributed is not running."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes; itself where there is one."""
    if world_size() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_rows(rows: Tensor) -> Tensor:
    """Rows of every process, concatenated by rank; itself where there is one."""
    if world_size() == 1:
        return rows
    size = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(size) for _ in range(world_size())]
    dist.all_gather(sizes, size)
    counts = torch.cat(sizes).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
