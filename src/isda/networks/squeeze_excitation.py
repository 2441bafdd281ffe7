"""Squeeze-and-excitation (Hu et al., "Squeeze-and-excitation networks", CVPR 2018)."""

from torch import Tensor, nn

__all__ = ["SqueezeExcitation"]


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from all channel means: x * sigmoid(W2 relu(W1 mean(x))).

    The two layers have no bias, as in the publication's equation 3, and are 1x1 convolutions on the pooled
    1x1 map, so that a network's classifier stays its only ``nn.Linear``.

    Args:
        channels: number of channels of the input.
        reduction: the hidden layer has ``channels // reduction`` units (16 in the publication), at least 1.

    Example:
        >>> import torch
        >>> SqueezeExcitation(32)(torch.ones(2, 32, 8, 8)).shape
        torch.Size([2, 32, 8, 8])
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = nn.Conv2d(channels, hidden, kernel_size=1, bias=False)
        self.excite = nn.Conv2d(hidden, channels, kernel_size=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Gate the channels of (N, channels, height, width)."""
        means = maps.mean(dim=(2, 3), keepdim=True)
        gate: Tensor = self.excite(self.squeeze(means).relu()).sigmoid()
        return maps * gate
