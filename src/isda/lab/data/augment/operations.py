"""The operations of RandAugment and AutoAugment, with an operation and a magnitude per sample.

Names, values and the meaning of magnitudes are torchvision's: ShearX/Y slope, TranslateX/Y pixels, Rotate degrees,
Brightness/Color/Contrast/Sharpness factor - 1, Posterize bits, Solarize threshold / 255. As in the authors' code,
sheared images are interpolated by cubics, moved and rotated ones by the nearest pixel, and what comes in from outside
is grey (128). Photometric operations compute in float32 and truncate to uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isda.lab.data.augment.compose import check_images
from isda.lab.devices import send

Fill = int | Sequence[int]
"""Colour outside the image: one grey value or one value per channel, 0 .. 255."""
GREY = 128
"""The colour outside the image in the authors' code."""


def shear_x(images: Tensor, slope: Tensor, fill: Fill) -> Tensor:
    """Slide row y by slope (N,) times y: the value at x is that of x + slope * y, measured from the upper left corner.

    Between pixels it is the cubic of PIL's affine transformations, with the edge continued, truncated to uint8.
    """
    height, width = images.shape[2:]
    x, y = (torch.arange(length, device=images.device) + 0.5 for length in (width, height))
    position = x + send(slope.float(), images.device).view(-1, 1, 1) * y[:, None]
    outside = ((position < 0) | (position >= width))[:, None]
    before = (position - 0.5).floor()
    share = (position - 0.5 - before)[:, None]
    columns = before.long()[:, None].expand_as(images)
    first, second, third, fourth = (
        images.gather(3, (columns + step).clamp_(0, width - 1)).float() for step in (-1, 0, 1, 2)
    )
    square = 2 * (first - second) + third - fourth
    cubic = second - first + fourth - third
    value = second + share * (third - first + share * (square + share * cubic))
    return torch.where(outside, _colour(fill, images), _to_uint8(value))


def shear_y(images: Tensor, slope: Tensor, fill: Fill) -> Tensor:
    """Slide column x by slope (N,) times x, see `shear_x`."""
    return shear_x(images.transpose(2, 3), slope, fill).transpose(2, 3).contiguous()


def translate_x(images: Tensor, pixels: Tensor, fill: Fill) -> Tensor:
    """Move right by pixels (N,), cut to whole pixels towards zero."""
    width = images.shape[3]
    source = torch.arange(width, device=images.device) - send(pixels.trunc().long(), images.device).view(-1, 1, 1, 1)
    moved = images.gather(3, source.clamp(0, width - 1).expand_as(images))
    return torch.where((source < 0) | (source >= width), _colour(fill, images), moved)


def translate_y(images: Tensor, pixels: Tensor, fill: Fill) -> Tensor:
    """Move down by pixels (N,), cut to whole pixels towards zero."""
    return translate_x(images.transpose(2, 3), pixels, fill).transpose(2, 3).contiguous()


def rotate(images: Tensor, degrees: Tensor, fill: Fill) -> Tensor:
    """Turn counter-clockwise about the centre by degrees (N,), nearest pixel.

    The coordinates go through the same float32 steps as torchvision's, so that pixels which fall exactly between two
    input pixels are rounded the same way.
    """
    count, _, height, width = images.shape
    angle = torch.deg2rad(degrees.double())
    cosine, sine = angle.cos(), angle.sin()
    # In float64 on the host; not every accelerator has it.
    maps = send(torch.stack([cosine, -sine, sine, cosine], 1).view(count, 2, 2, 1, 1).float(), images.device)
    size = send([width, height], images.device, torch.float32).view(2, 1, 1)
    x = torch.arange(width, dtype=torch.float32, device=images.device) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float32, device=images.device)[:, None] - (height - 1) / 2
    maps = maps / (0.5 * size[:, None])
    source = (x * maps[:, :, 0] + y * maps[:, :, 1]).add_(1).mul_(0.5 * size).sub_(0.5).round_().long()
    column, row = source.unbind(1)
    outside = ((column < 0) | (column >= width) | (row < 0) | (row >= height))[:, None]
    position = row.clamp_(0, height - 1).mul_(width).add_(column.clamp_(0, width - 1)).flatten(1)[:, None]
    turned = images.flatten(2).gather(2, position.expand(-1, images.shape[1], -1)).view_as(images)
    return torch.where(outside, _colour(fill, images), turned)


def _colour(fill: Fill, images: Tensor) -> Tensor:
    return send(fill, images.device, images.dtype).view(-1, 1, 1)


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(N,) parameters as float32 (N, 1, 1, 1) beside the images."""
    return send(values.float(), images.device).view(-1, 1, 1, 1)


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
    dropped = 8 - send(bits.long(), images.device).view(-1, 1, 1, 1)
    return images & ((255 >> dropped) << dropped).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above threshold (N,), 0 .. 255."""
    return torch.where(images >= _column(threshold, images), 255 - images, images)


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


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Fill], Tensor]] = {
    "Identity": lambda images, magnitude, fill: images,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
    "Brightness": lambda images, magnitude, fill: brightness(images, 1 + magnitude),
    "Color": lambda images, magnitude, fill: color(images, 1 + magnitude),
    "Contrast": lambda images, magnitude, fill: contrast(images, 1 + magnitude),
    "Sharpness": lambda images, magnitude, fill: sharpness(images, 1 + magnitude),
    "Posterize": lambda images, magnitude, fill: posterize(images, magnitude),
    "Solarize": lambda images, magnitude, fill: solarize(images, 255 * magnitude),
    "AutoContrast": lambda images, magnitude, fill: autocontrast(images),
    "Equalize": lambda images, magnitude, fill: equalize(images),
    "Invert": lambda images, magnitude, fill: images.bitwise_not(),
}
"""(images (N, C, H, W), magnitude (N,) on the host, fill) -> images."""

OPERATION_NAMES = tuple(OPERATIONS)


def apply_operations(images: Tensor, operation: Tensor, magnitude: Tensor, fill: Fill = GREY) -> Tensor:
    """Apply to each image its own operation with its own magnitude.

    The samples that share an operation are gathered and processed together.

    Args:
        images: (N, C, H, W) uint8 with 1 or 3 channels.
        operation: (N,) positions in OPERATION_NAMES, on the CPU.
        magnitude: (N,) float64 on the CPU; ignored by operations without one.
        fill: colour that geometric operations bring in from outside the image.
    """
    check_images(images, torch.uint8)
    channels = images.shape[1]
    if channels not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels, got {channels}")
    if not isinstance(fill, int) and len(fill) not in (1, channels):
        raise ValueError(f"fill must be one value or one per channel ({channels}), got {len(fill)}")
    order, parts = [], []
    for index in operation.unique().tolist():
        samples = (operation == index).nonzero()[:, 0]
        chosen = images.index_select(0, send(samples, images.device))
        order.append(samples)
        parts.append(OPERATIONS[OPERATION_NAMES[index]](chosen, magnitude[samples], fill))
    return torch.cat(parts).index_select(0, send(torch.cat(order).argsort(), images.device)) if parts else images
