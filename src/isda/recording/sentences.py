"""Words that several refusals end with."""

from __future__ import annotations

__all__ = ["BY_HAND", "DATA_PARALLEL"]

BY_HAND = "criterion(logits, targets, features=..., weight=...)"
DATA_PARALLEL = (
    "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
    "DistributedDataParallel"
)
