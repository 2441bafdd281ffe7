"""Random numbers for augmentation: one independent stream per sample, independent of its batch.

Every sample has a 64-bit key; its k-th random number is the k-th output of SplitMix64 (Steele, Lea and Flood, 2014)
started at that key. With keys made from (seed, epoch, sample index) the augmentation of a sample does not depend on
the batch size, the order, or the number of processes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as an unsigned `value`."""
    return value - (1 << 64) if value >= 1 << 63 else value


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = _signed(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = _signed(0x94D049BB133111EB)


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical shift: `>>` on int64 repeats the sign bit."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def splitmix64(state: Tensor) -> Tensor:
    """The SplitMix64 output for each int64 `state`, elementwise; arithmetic is modulo 2^64.

    Example:
        >>> splitmix64(torch.tensor([1234567])).item()  # the published first output for this seed
        6457827717110365317
    """
    bits = state + _INCREMENT
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST_MULTIPLIER
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND_MULTIPLIER
    return bits ^ _shift_right(bits, 31)


class Draws:
    """Fresh random numbers for a batch of N samples, drawn in order, independently for each sample.

    Each call moves every sample's stream on by the same amount, so using one `Draws` for two passes of a pipeline
    gives two different views of each image, and a new `Draws` with the same keys repeats the first.
    The keys stay on the CPU: no accelerator has to wait for the host to know which samples get which operation.

    Args:
        keys: (N,) int64, one per sample; see `for_samples`.

    Example:
        >>> whole = Draws.for_samples(torch.arange(4), seed=0, epoch=7).uniform(2)
        >>> part = Draws.for_samples(torch.tensor([2]), seed=0, epoch=7).uniform(2)
        >>> bool((whole[2] == part[0]).all())
        True
    """

    def __init__(self, keys: Tensor) -> None:
        if keys.ndim != 1 or keys.dtype != torch.int64:
            raise ValueError(f"keys must be a 1-D int64 tensor, got {keys.dtype} of shape {tuple(keys.shape)}")
        self.keys = keys.cpu()
        self._position = 0

    @classmethod
    def for_samples(cls, indices: Tensor, *, seed: int, epoch: int = 0) -> Draws:
        """Draws that depend on the seed, the epoch and the positions (N,) of the samples in their data set only."""
        # The chain of `isda.lab.seeds.mix`, with the last link on a tensor.
        run = splitmix64(torch.tensor(_signed(seed % (1 << 64))))
        return cls(splitmix64(splitmix64(run + epoch) + indices.cpu().to(torch.int64)))

    def __len__(self) -> int:
        return self.keys.shape[0]

    def _bits(self, count: int) -> Tensor:
        steps = torch.arange(self._position, self._position + count)
        self._position += count
        return splitmix64(self.keys[:, None] + steps * _INCREMENT)

    def uniform(self, count: int = 1) -> Tensor:
        """(N, count) float32 numbers, uniform on the 2^24 multiples of 2^-24 in [0, 1)."""
        return _shift_right(self._bits(count), 40).to(torch.float32) * 2.0**-24

    def integers(self, bound: int, count: int = 1) -> Tensor:
        """(N, count) int64 numbers, uniform on 0 .. bound - 1 (bound < 2^31; the bias is below bound / 2^32)."""
        return (_shift_right(self._bits(count), 32) * bound) >> 32


def require_draws(draws: Draws | None, count: int) -> Draws:
    """`draws` itself, or a ValueError that says what a random transform needs."""
    if draws is None or len(draws) != count:
        got = "None" if draws is None else f"{len(draws)} keys"
        raise ValueError(f"draws must have one key for each of {count} images in a random transform, got {got}")
    return draws
