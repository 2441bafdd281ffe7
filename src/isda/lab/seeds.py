"""Seeds derived from a run's seed and a purpose, by SplitMix64 (Steele, Lea and Flood, 2014)."""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1


def _splitmix64(state: int) -> int:
    bits = (state + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def mix(*parts: int) -> int:
    """A seed in 0..2^63-1 that depends on every part and on their order.

    ``isda.lab.data.augment.Draws`` makes the keys of samples in the same way, on tensors.

    Example:
        >>> mix(0, 1) == mix(1, 0), mix(0, 1) == mix(0, 1)
        (False, True)
    """
    state = 0
    for part in parts:
        state = _splitmix64((state + part) & _MASK)
    return state >> 1


def generator(*parts: int) -> torch.Generator:
    """A generator on the CPU, seeded by `mix`; the global one is left alone."""
    return torch.Generator().manual_seed(mix(*parts))
