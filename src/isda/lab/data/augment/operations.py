"""The operations of RandAugment and AutoAugment, with an operation and a magnitude per sample.

Names, values and the meaning of magnitudes are torchvision's: ShearX/Y slope, TranslateX/Y pixels, Rotate degrees,
Brightness/Color/Contrast/Sharpness factor - 1, Posterize bits, Solarize threshold / 255. Geometric operations are
affine maps from output to input pixel coordinates, measured from the image centre: x_in = m00 x + m01 y + m02,
y_in = m10 x + m11 y + m12, so that a mixed batch is resampled once (nearest neighbour). Photometric ones compute in
float32 and truncate to uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isda.lab.choices import check_choice
from isda.lab.data.augment.compose import check_images
from isda.lab.devices import send

Fill = int | Sequence[int]
"""Colour outside the image: one grey value or one value per channel, 0 .. 255."""

_MAX_PIXELS = 1 << 24  # positions are counted in float32


def affine_nearest(images: Tensor, maps: Tensor, fill: Fill = 0) -> Tensor:
    """Resample each image at the nearest input pixel of its own affine map.

    The coordinates go through the same float32 steps as torchvision's, so that pixels which fall exactly between two
    input pixels are rounded the same way.

    Args:
        images: (N, C, H, W), any dtype.
        maps: (N, 2, 3), output to input coordinates measured from the centre, in pixels, x before y.
        fill: value of pixels whose source lies outside the image.

    Example:
        >>> ramp = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4)
        >>> affine_nearest(ramp, translate_x(torch.tensor([1.0]), 1, 4), fill=9).flatten().tolist()
        [9, 0, 1, 2]
    """
    count, channels, height, width = images.shape
    if (height + 2) * (width + 2) > _MAX_PIXELS:
        raise ValueError(f"images must have fewer than {_MAX_PIXELS} pixels each, got {height}x{width}")
    size = send([width, height], images.device, torch.float32).view(2, 1, 1)
    x = torch.arange(width, dtype=torch.float32, device=images.device) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float32, device=images.device)[:, None] - (height - 1) / 2
    normalised = maps.to(torch.float32)[..., None, None] / (0.5 * size[:, None])
    source = x * normalised[:, :, 0] + y * normalised[:, :, 1]
    source.add_(normalised[:, :, 2]).add_(1).mul_(0.5 * size).sub_(0.5).round_()
    # A border of one pixel in the fill colour stands for everything outside.
    column, row = torch.minimum(source.clamp_(min=-1), size, out=source).unbind(1)
    position = row.mul_(width + 2).add_(column).add_(width + 3).to(torch.int64).view(count, 1, -1)
    border = send(fill, images.device, images.dtype).view(1, -1, 1, 1)
    padded = border.expand(count, channels, height + 2, width + 2).contiguous()
    padded[:, :, 1:-1, 1:-1] = images
    return padded.flatten(2).gather(2, position.expand(-1, channels, -1)).view_as(images)


def _maps(entries: dict[tuple[int, int], Tensor]) -> Tensor:
    """(N, 2, 3) identity maps with some entries replaced by (N,) values."""
    first = next(iter(entries.values()))
    maps = torch.eye(2, 3, dtype=torch.float64, device=first.device).repeat(len(first), 1, 1)
    for (row, column), value in entries.items():
        maps[:, row, column] = value
    return maps


def shear_x(slope: Tensor, height: int, width: int) -> Tensor:
    """Slide each row by slope (N,) times its distance from the top edge: x_in = x + slope * (y + height / 2)."""
    return _maps({(0, 1): slope, (0, 2): slope * (0.5 * height)})


def shear_y(slope: Tensor, height: int, width: int) -> Tensor:
    """Slide each column by slope (N,) times its distance from the left edge: y_in = y + slope * (x + width / 2)."""
    return _maps({(1, 0): slope, (1, 2): slope * (0.5 * width)})


def translate_x(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move right by pixels (N,), cut to whole pixels towards zero."""
    return _maps({(0, 2): -pixels.trunc()})


def translate_y(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move down by pixels (N,), cut to whole pixels towards zero."""
    return _maps({(1, 2): -pixels.trunc()})


def rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    """Turn counter-clockwise about the centre by degrees (N,)."""
    angle = torch.deg2rad(degrees.to(torch.float64))
    cosine, sine = angle.cos(), angle.sin()
    return _maps({(0, 0): cosine, (0, 1): -sine, (1, 0): sine, (1, 1): cosine})


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(N,) parameters as float32 (N, 1, 1, 1) beside the images."""
    return send(values, images.device, torch.float32).view(-1, 1, 1, 1)


def _to_uint8(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Mix float images: factor * images + (1 - factor) * other."""
    return _to_uint8((images * _column(factor, images)).addcmul_(other, _column(1 - factor, images)))


def _grey(images: Tensor) -> Tensor:
    """(N, 1, H, W) luminance of float images in whole grey levels, with torchvision's rounded ITU-R 601 weights."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_().unsqueeze(1)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scale pixel values by factor (N,): 0 is black, 1 the image."""
    return _to_uint8(images.to(torch.float32).mul_(_column(factor, images)))


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Saturation by factor (N,): 0 is grey, 1 the image. A single channel has none and stays as it is."""
    if images.shape[1] == 1:
        return images
    values = images.to(torch.float32)
    return _blend(values, _grey(values), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Contrast by factor (N,): 0 is the image's mean grey, 1 the image."""
    values = images.to(torch.float32)
    return _blend(values, _grey(values).mean(dim=(1, 2, 3), keepdim=True), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Sharpness by factor (N,): 0 is blurred with (1 1 1; 1 5 1; 1 1 1) / 13, 1 the image. The border stays."""
    if min(images.shape[-2:]) <= 2:
        return images
    values = images.to(torch.float32)
    # Sums of whole grey levels are exact in float32, in any order; only the division rounds.
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    blurred = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = values[:, :, 1:-1, 1:-1]
    blurred.add_(inner, alpha=4).div_(13).round_()
    inner.addcmul_(blurred.sub_(inner), _column(1 - factor, images))
    return _to_uint8(values)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits (N,), 0 .. 8, of each value; fractions of a bit are dropped."""
    dropped = 8 - send(bits, images.device, torch.int64).view(-1, 1, 1, 1)
    return images & ((255 >> dropped) << dropped).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above threshold (N,), 0 .. 255."""
    lowest = _column(threshold, images).ceil().to(torch.uint8)
    # max and exclusive or run several times faster on bytes than a comparison by broadcasting and torch.where.
    bright = torch.maximum(images, lowest) == images
    return images ^ bright.to(torch.uint8).mul_(255)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel of each image to 0 .. 255."""
    from torchvision.transforms.v2.functional import autocontrast

    stretched: Tensor = autocontrast(images)
    return stretched


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel of each image."""
    from torchvision.transforms.v2.functional import equalize

    equalized: Tensor = equalize(images)
    return equalized


def invert(images: Tensor) -> Tensor:
    """255 minus each value."""
    return images.bitwise_not()


GEOMETRIC: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
}
"""(magnitude (N,), height, width) -> affine maps (N, 2, 3)."""

PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": lambda images, magnitude: brightness(images, 1 + magnitude),
    "Color": lambda images, magnitude: color(images, 1 + magnitude),
    "Contrast": lambda images, magnitude: contrast(images, 1 + magnitude),
    "Sharpness": lambda images, magnitude: sharpness(images, 1 + magnitude),
    "Posterize": posterize,
    "Solarize": lambda images, magnitude: solarize(images, 255 * magnitude),
    "AutoContrast": lambda images, magnitude: autocontrast(images),
    "Equalize": lambda images, magnitude: equalize(images),
    "Invert": lambda images, magnitude: invert(images),
}
"""(images (N, C, H, W), magnitude (N,)) -> images."""

OPERATION_NAMES = ("Identity", *GEOMETRIC, *PHOTOMETRIC)


def operation_index(name: str) -> int:
    """Position of an operation in OPERATION_NAMES.

    Example:
        >>> OPERATION_NAMES[operation_index("Rotate")]
        'Rotate'
    """
    return OPERATION_NAMES.index(check_choice("name", name, OPERATION_NAMES))


def apply_operations(images: Tensor, operation: Tensor, magnitude: Tensor, fill: Fill = 0) -> Tensor:
    """Apply to each image its own operation with its own magnitude.

    The samples that share an operation are gathered and processed together, so no operation is computed for a
    sample that does not use it; the geometric ones are a single resampling.

    Args:
        images: (N, C, H, W) uint8 with 1 or 3 channels.
        operation: (N,) positions in OPERATION_NAMES; on the CPU, or an accelerator has to wait.
        magnitude: (N,) float64; ignored by operations without one.
        fill: colour that geometric operations bring in from outside the image.
    """
    check_images(images, torch.uint8)
    channels, height, width = images.shape[1:]
    if channels not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels, got {channels}")
    if not isinstance(fill, int) and len(fill) not in (1, channels):
        raise ValueError(f"fill must be one value or one per channel ({channels}), got {len(fill)}")
    order, parts, moved, maps = [], [], [], []
    for index in operation.unique().tolist():
        name = OPERATION_NAMES[index]
        samples = (operation == index).nonzero()[:, 0]
        if name in GEOMETRIC:
            moved.append(samples)
            maps.append(GEOMETRIC[name](magnitude[samples], height, width))
            continue
        chosen = images.index_select(0, send(samples, images.device))
        if name in PHOTOMETRIC:
            chosen = PHOTOMETRIC[name](chosen, send(magnitude[samples], images.device))
        order.append(samples)
        parts.append(chosen)
    if moved:
        order.append(torch.cat(moved))
        chosen = images.index_select(0, send(order[-1], images.device))
        parts.append(affine_nearest(chosen, send(torch.cat(maps), images.device), fill))
    if not parts:
        return images
    return torch.cat(parts).index_select(0, send(torch.cat(order).argsort(), images.device))
