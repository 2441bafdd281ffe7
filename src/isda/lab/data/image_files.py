"""Images decoded on access, for ImageNet and folders that do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from isda.lab.files import check_regular_file

if TYPE_CHECKING:
    from PIL.Image import Image

GREY_MODES = ("1", "L")
# More than 8 bits per channel: PIL would clip silently.
WIDE_MODES = ("I", "F")


def open_image(path: Path) -> Image:
    """Open an image without decoding its pixels.

    Raises:
        ValueError: the file is not an image, not a regular file, or has more than 8 bits per channel.
    """
    import PIL.Image

    check_regular_file(path)
    try:
        image = PIL.Image.open(path)
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise _unreadable_image_error(path, error) from error
    if image.mode.startswith(WIDE_MODES):
        image.close()
        raise ValueError(f"{path} has pixels of mode {image.mode}; images of 8 bits per channel are expected")
    return image


def read_image(path: Path, channels: int = 3) -> Tensor:
    """Decode one image file to uint8 (channels, H, W), grey for one channel and RGB for three.

    Raises:
        ValueError: the file cannot be decoded; the message names it.
    """
    with open_image(path) as image:
        try:
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
        except (OSError, SyntaxError, ValueError, IndexError) as error:
            raise _unreadable_image_error(path, error) from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1).contiguous()


class ImageFiles(Dataset[Tensor]):
    """A sequence of images decoded on access: `x[i]` is uint8 (C, H, W), `x[indices]` another `ImageFiles`."""

    def __init__(self, paths: Sequence[Path], channels: int = 3) -> None:
        self.paths = tuple(paths)
        self.channels = channels

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: Tensor | slice) -> ImageFiles: ...
    def __getitem__(self, index: int | Tensor | slice) -> Tensor | ImageFiles:
        if isinstance(index, slice):
            return ImageFiles(self.paths[index], self.channels)
        if isinstance(index, Tensor) and index.dim() == 1:
            positions = index.nonzero().flatten() if index.dtype == torch.bool else index
            return ImageFiles([self.paths[i] for i in positions.tolist()], self.channels)
        return read_image(self.paths[int(index)], self.channels)

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} images, {self.channels} channels)"


class LabelledImages(Dataset[tuple[Tensor, Tensor]]):
    """(image, label) pairs for a DataLoader; `transform` sees one uint8 image (C, H, W) at a time."""

    def __init__(
        self, images: Tensor | ImageFiles, labels: Tensor, transform: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return (image if self.transform is None else self.transform(image)), self.labels[index]


def _unreadable_image_error(path: Path, error: Exception) -> ValueError:
    reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
    return ValueError(f"{path} cannot be read as an image: {reason}")
