"""Memory and work of the covariance models, checks that they fit, and the choice of covariance='auto'."""

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


def full_flops(num_classes: int, feature_dim: int) -> int:
    """Floating point operations of W Sigma_c for all classes, most of what a step with full covariances costs.

    A step computes it for the classes that its batch holds, C at most.

    Example:
        >>> full_flops(100, 640) / 1e9
        8.192
    """
    return 2 * num_classes**2 * feature_dim**2


def low_rank_flops(num_classes: int, feature_dim: int, rank: int) -> int:
    """The same of a low-rank covariance: W times sketches of 2 r rows, and once more in the backward pass."""
    return 8 * rank * num_classes**2 * feature_dim


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
AUTO_RANK = 16
LARGEST_FULL_BYTES = 2**30
"""The state up to which "auto" is "full", at 4 bytes a number."""
LARGEST_FULL_FLOPS = 5 * 10**10
"""The `full_flops` up to which "auto" is "full" on a CPU: about half a second for two cores."""
ACCELERATOR_SPEED = 100
"""How many times as many operations it may take elsewhere."""

_logged: set[tuple[int, int]] = set()


def auto_name(num_classes: int, feature_dim: int, device: torch.device | str | None = None) -> str:
    """The name of the model: "full" up to 1 GiB of state and 50 GFLOP per step, else "low_rank".

    On accelerators the limit is 5,000 GFLOP. Up to A = 4 * 16 features "low_rank" would not need fewer operations, so
    that only the memory counts. Shapes and the kind of device decide, at 4 bytes a number whatever the dtype, so that
    every process agrees and a stored state fits wherever training resumes on a device of the same kind.

    Example:
        >>> auto_name(100, 640), auto_name(1000, 2048)
        ('full', 'low_rank')
        >>> auto_name(1000, 512, "cpu"), auto_name(1000, 512, "cuda")
        ('low_rank', 'full')
    """
    if full_bytes(num_classes, feature_dim) > LARGEST_FULL_BYTES:
        return "low_rank"
    kind = torch.device(device or torch.get_default_device()).type
    limit = LARGEST_FULL_FLOPS * (1 if kind in ("cpu", "meta") else ACCELERATOR_SPEED)
    limit = max(limit, low_rank_flops(num_classes, feature_dim, AUTO_RANK))
    return "full" if full_flops(num_classes, feature_dim) <= limit else "low_rank"


def log_auto_choice(num_classes: int, feature_dim: int, rank: int) -> None:
    """Say once for each shape, in the log and in one process, that the covariance is not the full one."""
    shape = (num_classes, feature_dim)
    if shape in _logged or distributed.rank() != 0:
        return
    _logged.add(shape)
    full, low = (size / 2**30 for size in (full_bytes(*shape), low_rank_bytes(*shape, rank)))
    logging.getLogger("isda").warning(
        "covariance='auto' is 'low_rank' (rank=%d, %.2f GiB) for %d classes x %d features: 'full' takes %.1f GiB and "
        "up to %.0f GFLOP per step",
        rank,
        low,
        num_classes,
        feature_dim,
        full,
        full_flops(*shape) / 1e9,
    )
