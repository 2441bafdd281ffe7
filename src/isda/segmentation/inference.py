"""Labelling images of any size: at one scale or several, mirrored too, as a whole or by sliding windows.

Each function makes a way to predict out of another, so that they compose. Probabilities are averaged, one part after
the other: the memory does not grow with the number of scales or windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from isda.errors import of_type
from isda.networks.modes import in_eval_mode
from isda.networks.segmentation.resizing import resize

__all__ = ["SCALES", "Predict", "mirrored", "multi_scale", "predictor", "probabilities", "sliding", "whole", "windows"]

Predict = Callable[[Tensor], Tensor]
"""Maps images (N, 3, H, W) to probabilities (N, C, H, W)."""

SCALES = (0.75, 1.0, 1.25, 1.5)
"""Those of the paper's table of Cityscapes."""
SMALLEST_SCALE, LARGEST_SCALE = 0.01, 10
"""Of what may be asked for: pixels, and the memory they take, grow with the square."""


def whole(network: nn.Module) -> Predict:
    """One pass of a network over whole images: the softmax of its logits, in float32 at least.

    Args:
        network: maps images (N, 3, H, W) to logits (N, C, H, W).
    """

    def predict(images: Tensor) -> Tensor:
        logits = network(images)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(1)

    return predict


def mirrored(predict: Predict) -> Predict:
    """The mean of the prediction and of that for the mirrored image, mirrored back."""

    def both(images: Tensor) -> Tensor:
        total = predict(images)
        return total.add(predict(images.flip(3)).flip(3)).div_(2)

    return both


def multi_scale(predict: Predict, scales: Sequence[float]) -> Predict:
    """The mean over predictions for the image resized by each factor, resized back to its size."""
    if not scales or not all(SMALLEST_SCALE <= scale <= LARGEST_SCALE for scale in scales):
        told = f"from {SMALLEST_SCALE} to {LARGEST_SCALE}, at least one, got {list(scales)}"
        raise ValueError(f"scales must be numbers {told}")

    def mean(images: Tensor) -> Tensor:
        size = images.shape[2:]
        total: Tensor | None = None
        for scale in scales:
            scaled = resize(images, [max(1, round(length * scale)) for length in size])
            part = resize(predict(scaled), size)
            total = part if total is None else total.add_(part)
        summed = of_type(total, Tensor)
        return summed if len(scales) == 1 else summed.div_(len(scales))

    return mean


def windows(length: int, crop: int) -> list[tuple[int, int]]:
    """The ranges that windows of a crop's size cover along one side, two thirds of it apart; the last ends the image.

    Example:
        >>> windows(10, 6), windows(5, 6)
        ([(0, 6), (4, 10)], [(0, 5)])
    """
    if length <= crop:
        return [(0, length)]
    stride = math.ceil(crop * 2 / 3)
    starts = [min(start, length - crop) for start in range(0, length - crop + stride, stride)]
    return [(start, start + crop) for start in starts]


def sliding(predict: Predict, crop: tuple[int, int]) -> Predict:
    """The mean over predictions for overlapping windows, one after the other.

    Windows lie two thirds of the crop apart, as in the evaluation of PSPNet. An image that one window covers is
    predicted as a whole: it is not padded.

    Args:
        predict: for one window.
        crop: height and width of a window.
    """
    if min(crop) < 1:
        raise ValueError(f"crop must be two lengths of at least 1, got {crop}")

    def mean(images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        rows, columns = windows(height, crop[0]), windows(width, crop[1])
        total: Tensor | None = None
        counts = images.new_zeros(height, width)
        for top, bottom in rows:
            for left, right in columns:
                part = predict(images[:, :, top:bottom, left:right])
                if len(rows) == len(columns) == 1:
                    return part
                if total is None:
                    total = part.new_zeros(*part.shape[:2], height, width)
                total[:, :, top:bottom, left:right] += part
                counts[top:bottom, left:right] += 1
        summed = of_type(total, Tensor)
        return summed.div_(counts.to(summed.dtype))

    return mean


def predictor(
    network: nn.Module, *, scales: Sequence[float] = (1.0,), flip: bool = False, crop: tuple[int, int] | None = None
) -> Predict:
    """Everything together: at each scale by windows of ``crop`` (None: the whole image), each mirrored too if asked."""
    predict = whole(network)
    if flip:
        predict = mirrored(predict)
    if crop is not None:
        predict = sliding(predict, crop)
    return multi_scale(predict, scales)


@torch.no_grad()
def probabilities(
    network: nn.Module,
    image: Tensor,
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    crop: tuple[int, int] | None = None,
) -> Tensor:
    """The probabilities (C, H, W) of the classes at each pixel of one image (3, H, W), normalised as for training.

    The network predicts in evaluation mode, and is in its own mode afterwards.

    Args:
        network: maps images (N, 3, H, W) to logits (N, C, H, W).
        image: on the network's device.
        scales: factors on the image's size; the paper's multi-scale results have `SCALES`.
        flip: whether to average with the mirrored image.
        crop: height and width of sliding windows; None for the whole image.

    Example:
        >>> from isda.networks import segmentation
        >>> network = segmentation.create("pspnet-resnet-18", num_classes=5, width=0.125)
        >>> probabilities(network, torch.zeros(3, 40, 60), scales=SCALES, flip=True, crop=(33, 33)).shape
        torch.Size([5, 40, 60])
    """
    if image.ndim != 3:
        raise ValueError(f"image must have shape (3, H, W), got {tuple(image.shape)}")
    predict = predictor(network, scales=scales, flip=flip, crop=crop)
    with in_eval_mode(network):
        return predict(image.unsqueeze(0)).squeeze(0)
