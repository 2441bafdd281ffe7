"""Brightness, colour, contrast, sharpness and the grey-level operations on uint8 images, a parameter per sample.

Values follow torchvision.transforms.v2.functional step by step (float32, results cut, not rounded, to uint8).
Operations without a parameter are torchvision's own, which already treat each image of a batch on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isda.devices import send

__all__ = [
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "equalize",
    "invert",
    "posterize",
    "sharpness",
    "solarize",
]


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(N,) parameters as float32 (N, 1, 1, 1) beside the images."""
    return send(values, images.device, torch.float32).view(-1, 1, 1, 1)


def _to_uint8(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Mix float images: factor * images + (1 - factor) * other."""
    return _to_uint8((images * _column(factor, images)).addcmul_(other, _column(1 - factor, images)))


def _grey(images: Tensor) -> Tensor:
    """(N, 1, H, W) luminance of float images in whole grey levels, ITU-R 601-2 weights."""
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
