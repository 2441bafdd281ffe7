"""Inputs of a convolution as rows, unfolded in chunks on demand."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Window(NamedTuple):
    """The size of a kernel, its stride and its dilation, each by height and width."""

    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]


class Patches:
    """The rows (N h w, A k k) that a convolution multiplies by its weight (C, A k k), without memory of their own.

    Behaves like a tensor of that shape where rows are selected (by a slice or a mask) and for sizes; ``dense``
    makes the chosen rows.

    Args:
        inputs: (N, A, H, W) padded input of the convolution.
        window: kernel, stride and dilation.
        index: which rows are chosen; None for all.
        dtype: what the rows are made in; that of the inputs by default.

    Example:
        >>> layer, x = nn.Conv2d(2, 3, kernel_size=3, padding=1), torch.randn(4, 2, 5, 6)
        >>> patches = Patches.seen_by(layer, x)
        >>> patches.shape, patches.grid
        (torch.Size([120, 18]), torch.Size([5, 6]))
        >>> rows = patches[30:60].dense() @ layer.weight.flatten(1).t() + layer.bias
        >>> torch.allclose(rows, layer(x)[1].flatten(1).t(), atol=1e-6)
        True
    """

    ndim = 2

    def __init__(
        self, inputs: Tensor, window: _Window, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self._inputs, self._window, self._index = inputs, window, index
        self.dtype = inputs.dtype if dtype is None else dtype
        (height, width), (down, across) = (
            (1 + d * (k - 1) for k, d in zip(window.size, window.dilation, strict=True)),
            window.dilation,
        )
        seen = inputs.unfold(2, height, window.stride[0]).unfold(3, width, window.stride[1])
        self._view = seen[..., ::down, ::across].permute(0, 2, 3, 1, 4, 5)
        self.grid = self._view.shape[1:3]

    @classmethod
    def seen_by(cls, layer: nn.Conv2d, inputs: Tensor) -> Patches:
        """The patches of ``inputs`` (N, A, H, W) that ``layer`` multiplies."""
        sides = list(layer._reversed_padding_repeated_twice)
        if any(sides):
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            inputs = F.pad(inputs, sides, mode=mode)
        sizes = (layer.kernel_size, layer.stride, layer.dilation)
        return cls(inputs, _Window(*((int(size[0]), int(size[1])) for size in sizes)))

    @property
    def samples(self) -> int:
        """N."""
        return len(self._inputs)

    @property
    def shape(self) -> torch.Size:
        """(rows, A k k)."""
        return torch.Size((len(self), self._view.shape[3:].numel()))

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self._inputs.device

    def __len__(self) -> int:
        return self._view.shape[:3].numel() if self._index is None else len(self._index)

    def is_floating_point(self) -> bool:
        """Whether the rows are floating point."""
        return self.dtype.is_floating_point

    def numel(self) -> int:
        """Numbers that the rows would hold."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes of one of them."""
        return self.dtype.itemsize

    def detach(self) -> Patches:
        """The same rows without a graph."""
        return Patches(self._inputs.detach(), self._window, self._index, self.dtype)

    def to(self, dtype: torch.dtype) -> Patches:
        """The same rows, to be made in another dtype."""
        return Patches(self._inputs, self._window, self._index, dtype)

    def __getitem__(self, rows: slice | Tensor) -> Patches:
        """Some of the rows: a slice of them, or those where a mask holds."""
        index = self._index
        if index is not None:
            index = index[rows]
        elif isinstance(rows, slice):
            index = torch.arange(*rows.indices(len(self)), device=self.device)
        else:
            (index,) = rows.nonzero(as_tuple=True)
        return Patches(self._inputs, self._window, index, self.dtype)

    def dense(self) -> Tensor:
        """(rows, A k k) the rows themselves."""
        if self._index is None:
            return self._view.flatten(3).flatten(0, 2).to(self.dtype)
        height, width = self.grid
        row = self._index // width
        return self._view[row // height, row % height, self._index % width].flatten(1).to(self.dtype)

    def maps(self) -> Tensor:
        """(N, A k k, h, w) all rows, as maps."""
        return self._view.flatten(3).movedim(-1, 1)

    def peaks(self) -> Tensor:
        """(rows, 1) the largest magnitude in each row; NaN is passed on."""
        magnitude = torch.linalg.vector_norm(self._inputs.to(self.dtype), float("inf"), dim=1, keepdim=True)
        window = self._window
        largest = F.max_pool2d(magnitude, window.size, window.stride, dilation=window.dilation).flatten().unsqueeze(1)
        return largest if self._index is None else largest.index_select(0, self._index)
