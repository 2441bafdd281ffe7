"""Rows of all processes: the statistics of a class come from the whole batch, wherever its parts are."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(
    features: Tensor, labels: Tensor, counted: Tensor | None, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features (N, A), labels (N,) and counted (N,), None for all: of all processes of the group, by rank.

    Processes may bring different numbers of rows, and none. Without torch.distributed the arguments come back.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return features, labels, counted
    counted = torch.ones_like(labels, dtype=torch.bool) if counted is None else counted
    size = torch.tensor([len(features)], device=features.device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    lengths = torch.cat(sizes).tolist()

    def gather(rows: Tensor) -> Tensor:
        padded = rows.new_zeros(max(lengths), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    return gather(features), gather(labels), gather(counted.to(torch.uint8)).bool()
