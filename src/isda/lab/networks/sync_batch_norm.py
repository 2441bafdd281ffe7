"""Batch normalisation with the statistics of all processes together, on the CPU as well: torch's needs GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isda.lab.devices import on_host
from isda.lab.distributed import all_reduce_sum, world_size


def synchronise_batch_norm(network: nn.Module, device: torch.device) -> nn.Module:
    """The network with batch norms that share their statistics among processes; torch's own on accelerators.

    Args:
        network: whose batch norms are replaced; parameters and running figures stay the same tensors.
        device: that it will be trained on.
    """
    if not on_host(device):
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = HostSyncBatchNorm  # type: ignore[assignment]
    return network


class HostSyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes, on any device; alone or in eval mode an ordinary one.

    Not a torch.nn.SyncBatchNorm, which DistributedDataParallel refuses on the CPU.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) normalised by mean and variance over all other dimensions of all processes together."""
        if not self.training or world_size() == 1:
            return super().forward(input)
        channels = input.shape[1]
        size = input.new_tensor([input.numel() / channels])
        sums = _SumOverProcesses.apply(torch.cat([input.sum((0, 2, 3)), size]))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = input - mean.view(-1, 1, 1)
        # Around the common mean: the difference of mean square and squared mean would cancel.
        variance = _SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp_min(1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(-1, 1, 1)
        return normalised * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)

    def _check_input_dim(self, input: Tensor) -> None:
        """Maps of any number of dimensions."""

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_reduce_sum(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return all_reduce_sum(gradient)
