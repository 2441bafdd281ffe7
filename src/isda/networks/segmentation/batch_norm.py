"""Batch normalisation whose running figures no longer run, for small batches and for runs in several processes."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["FrozenBatchNorm2d", "freeze_batch_norm"]

_Module = TypeVar("_Module", bound=nn.Module)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Normalises by its running figures, in training too; its scale and offset are trained as ever.

    Example:
        >>> FrozenBatchNorm2d(4).train().training
        False
    """

    def train(self, mode: bool = True) -> FrozenBatchNorm2d:
        """Stay in evaluation mode."""
        return super().train(False)


def freeze_batch_norm(network: _Module) -> _Module:
    """Freeze the running figures of all batch normalisation in a network, which is changed and returned.

    Parameters and buffers stay the same tensors under the same names: an optimiser keeps what it trains, and state
    dicts fit as before.

    Example:
        >>> network = freeze_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).train()
        >>> network[1].training
        False
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, FrozenBatchNorm2d):
                setattr(parent, name, _frozen(child))
    return network


def _frozen(norm: _BatchNorm) -> FrozenBatchNorm2d:
    frozen = FrozenBatchNorm2d(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=norm.affine)
    for name, tensor in (*norm.named_parameters(), *norm.named_buffers()):
        setattr(frozen, name, tensor)
    return frozen.eval()
