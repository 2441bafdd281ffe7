"""Leaving torch.autocast where the dtype of the statistics matters, at no cost where it is not on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["outside_autocast"]


def outside_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which products keep the dtype of their factors."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
