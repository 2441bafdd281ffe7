"""Memory of the covariance models, checks that they fit, and the choice of covariance='auto'."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from isda._utils import distributed
from isda._utils.devices import on_host


class CovarianceTooLarge(MemoryError, ValueError):
    """The requested statistics do not fit the device; the message names the models that would."""


def full_bytes(num_classes: int, feature_dim: int, itemsize: int = 4) -> int:
    """Bytes of a full covariance: C matrices of A x A, and two vectors of A for each mean.

    Example:
        >>> full_bytes(1000, 2048) / 1e9
        16.7936
    """
    return num_classes * feature_dim * (feature_dim + 2) * itemsize


def low_rank_bytes(num_classes: int, feature_dim: int, rank: int, itemsize: int = 4) -> int:
    """Bytes of a low-rank covariance: a sketch of 2 r rows, the exact variances and the mean, per class."""
    return num_classes * feature_dim * (2 * rank + 3) * itemsize


def diagonal_bytes(num_classes: int, feature_dim: int, itemsize: int = 4) -> int:
    """Bytes of a diagonal covariance: the variances and the mean, per class."""
    return num_classes * feature_dim * 3 * itemsize


def available_bytes(device: torch.device) -> int | None:
    """Free memory of ``device``, or None where the system does not tell."""
    if not on_host(device):
        ask = getattr(getattr(torch, device.type, None), "mem_get_info", None)
        return None if ask is None else int(ask(device)[0])
    limits = [_memory_available(), _control_group_left()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def check_full_fits(num_classes: int, feature_dim: int, itemsize: int, device: torch.device) -> None:
    """Raise CovarianceTooLarge when a full covariance would not fit into the free memory of ``device``."""
    needed, free = full_bytes(num_classes, feature_dim, itemsize), available_bytes(device)
    if free is None or needed <= free:
        return
    rank = 16
    raise CovarianceTooLarge(
        f"covariance='full' needs {_gigabytes(needed)} for {num_classes} classes x {feature_dim} features, but "
        f"{device} has {_gigabytes(free)} free; covariance='low_rank' (rank={rank}) needs "
        f"{_gigabytes(low_rank_bytes(num_classes, feature_dim, rank, itemsize))} and keeps the strongest correlations, "
        f"covariance='diagonal' needs {_gigabytes(diagonal_bytes(num_classes, feature_dim, itemsize))}"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _memory_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _control_group_left() -> int | None:
    """What a container may still take, when it has a limit of its own."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)


AUTO = "auto"
AUTO_CHOICES = ("full", "low_rank")
"""The models that "auto" stands for."""
LARGEST_FULL_BYTES = 2**30
"""The state up to which "auto" is "full", at 4 bytes a number."""

_logged: set[tuple[int, int]] = set()


def auto_name(num_classes: int, feature_dim: int) -> str:
    """The name of the model: "full" up to 1 GiB of state, else "low_rank".

    Shapes alone decide, at 4 bytes a number whatever the dtype, so that every machine and every process agrees and a
    stored state fits wherever training resumes.

    Example:
        >>> auto_name(100, 640), auto_name(1000, 2048)
        ('full', 'low_rank')
    """
    return "full" if full_bytes(num_classes, feature_dim) <= LARGEST_FULL_BYTES else "low_rank"


def log_auto_choice(num_classes: int, feature_dim: int, rank: int) -> None:
    """Say once for each shape, in the log and in one process, that the covariance is not the full one."""
    shape = (num_classes, feature_dim)
    if shape in _logged or distributed.rank() != 0:
        return
    _logged.add(shape)
    full, low = (size / 2**30 for size in (full_bytes(*shape), low_rank_bytes(*shape, rank)))
    logging.getLogger("isda").warning(
        "covariance='auto' is 'low_rank' (rank=%d, %.2f GiB) for %d classes x %d features: 'full' takes %.1f GiB",
        rank,
        low,
        num_classes,
        feature_dim,
        full,
    )
