"""The operations of RandAugment and AutoAugment by name, each sample of a batch with its own.

Names and the meaning of magnitudes are torchvision's: ShearX/Y slope, TranslateX/Y pixels, Rotate degrees,
Brightness/Color/Contrast/Sharpness factor - 1, Posterize bits, Solarize threshold / 255.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isda.choices import check_choice
from isda.data.augment import geometry, photometry
from isda.data.augment.compose import check_images
from isda.data.augment.geometry import Fill, affine_nearest
from isda.devices import send

__all__ = ["GEOMETRIC", "OPERATION_NAMES", "PHOTOMETRIC", "apply_operations", "operation_index"]

GEOMETRIC: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "ShearX": geometry.shear_x,
    "ShearY": geometry.shear_y,
    "TranslateX": geometry.translate_x,
    "TranslateY": geometry.translate_y,
    "Rotate": geometry.rotate,
}
"""(magnitude (N,), height, width) -> affine maps (N, 2, 3)."""

PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": lambda images, magnitude: photometry.brightness(images, 1 + magnitude),
    "Color": lambda images, magnitude: photometry.color(images, 1 + magnitude),
    "Contrast": lambda images, magnitude: photometry.contrast(images, 1 + magnitude),
    "Sharpness": lambda images, magnitude: photometry.sharpness(images, 1 + magnitude),
    "Posterize": photometry.posterize,
    "Solarize": lambda images, magnitude: photometry.solarize(images, 255 * magnitude),
    "AutoContrast": lambda images, magnitude: photometry.autocontrast(images),
    "Equalize": lambda images, magnitude: photometry.equalize(images),
    "Invert": lambda images, magnitude: photometry.invert(images),
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
