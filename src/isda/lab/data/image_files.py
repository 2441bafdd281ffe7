"""Image files: opened, turned upright, checked before training, and decoded on access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from isda.lab.files import check_regular_file

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IN_MEMORY_BYTES = 1 << 30
"""Images that take more when they are decoded stay on disk."""
GREY_MODES = ("1", "L")
# More than 8 bits per channel: PIL would clip silently.
WIDE_MODES = ("I", "F")
ORIENTATION = 0x0112  # the tag of EXIF
CHECKING_THREADS = 8
LISTED = 20

_Output = TypeVar("_Output")


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
        raise _unreadable(path, error) from error
    if image.mode.startswith(WIDE_MODES):
        image.close()
        raise ValueError(f"{path} has pixels of mode {image.mode}; images of 8 bits per channel are expected")
    return image


def upright_size(image: Image) -> tuple[int, int]:
    """(height, width) of an image after its EXIF orientation."""
    width, height = image.size
    # Orientations from 5 on lie on their side.
    return (width, height) if image.getexif().get(ORIENTATION, 1) >= 5 else (height, width)


def read_image(path: Path, channels: int = 3) -> Tensor:
    """Decode one image file to uint8 (channels, H, W), upright, grey for one channel and RGB for three.

    Raises:
        ValueError: the file cannot be decoded; the message names it.
    """
    from PIL.ImageOps import exif_transpose

    with open_image(path) as image:
        try:
            pixels = np.array(exif_transpose(image).convert("L" if channels == 1 else "RGB"))
        except (OSError, SyntaxError, ValueError, IndexError) as error:
            raise _unreadable(path, error) from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1).contiguous()


def check_decodable(path: Path) -> None:
    """Raise a ValueError unless the file can be decoded; of a JPEG at an eighth of its size, which is faster."""
    with open_image(path) as image:
        try:
            image.draft(None, (1, 1))
            image.load()
        except (OSError, SyntaxError, ValueError, IndexError) as error:
            raise _unreadable(path, error) from error


def first_errors(check: Callable[[Path], _Output], paths: Sequence[Path]) -> dict[Path, str]:
    """The message of the ValueError that ``check`` raises for each path, where it raises one."""

    def message(path: Path) -> str:
        try:
            check(path)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(CHECKING_THREADS) as pool:
        messages = zip(paths, pool.map(message, paths), strict=True)
        return {path: text for path, text in messages if text}


def listing(lines: Sequence[str]) -> str:
    """The first lines, and how many more there are."""
    more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join([*lines[:LISTED], *more])


def check_names(paths: Sequence[Path]) -> None:
    """Raise a ValueError that lists the paths whose names are not UTF-8: no report or table could hold them."""
    wrong = [repr(str(path)) for path in paths if not _is_utf8(str(path))]
    if wrong:
        raise ValueError(f"names of files and folders must be UTF-8, rename these {len(wrong)}:\n{listing(wrong)}")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
    return ValueError(f"{path} cannot be read as an image: {reason}")
