"""Passes of a network that leave the running statistics of batch normalisation as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["frozen_batch_norm"]


@contextmanager
def frozen_batch_norm(network: nn.Module) -> Iterator[None]:
    """Batch normalisation keeps its running statistics while the block runs.

    In training mode it still normalises with the statistics of the batch, as Miyato et al. (2018) do in passes over
    perturbed images.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    try:
        for layer in layers:
            layer.track_running_stats = False
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
