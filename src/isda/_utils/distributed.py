"""Collectives of torch.distributed that do nothing in a single process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of processes that share the statistics; 1 when torch.distributed is not running."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes; itself where there is one."""
    if world_size() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def exchange_counts(values: list[int], device: torch.device, group: dist.ProcessGroup | None) -> list[list[int]]:
    """The integers ``values`` of every process, by rank."""
    mine = torch.tensor(values, dtype=torch.int64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return torch.stack(everyone).tolist()


def gather_rows(rows: Tensor, sizes: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """Rows of every process, concatenated by rank; ``sizes`` holds how many rows each process brings."""
    longest = max(sizes)
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(everyone, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(everyone, sizes, strict=True)])


def broadcast_from(tensor: Tensor, rank: int, group: dist.ProcessGroup | None) -> None:
    """Overwrite the tensor on every process by that of process ``rank`` (within the group)."""
    source = rank if group is None else dist.get_global_rank(group, rank)
    dist.broadcast(tensor, src=source, group=group)


def rank(group: dist.ProcessGroup | None = None) -> int:
    """The number of this process; 0 when torch.distributed is not running."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0
    return dist.get_rank(group)
