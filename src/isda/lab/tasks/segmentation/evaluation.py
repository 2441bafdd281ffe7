"""Inference at several scales, mirrored or by sliding windows, and the metrics of segmentation networks.

Predictors compose. Probabilities are averaged one part at a time, so memory does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from isda.lab.choices import expect_type, positive_integer
from isda.lab.devices import in_eval_mode
from isda.lab.engine.config import Figure
from isda.lab.engine.processes import Processes
from isda.lab.networks.segmentation import resize_maps
from isda.lab.tasks.common.data import to_network_input
from isda.lab.tasks.common.evaluation import TRAIN_LOSS
from isda.lab.tasks.segmentation.data import SegmentationBatch

BASELINES = ("cross-entropy",)
"""Methods that the others are compared to."""


def figures_for(evaluated_on: str, multi_scale: bool) -> tuple[Figure, ...]:
    """The figures of a run, the mean intersection over union first.

    Args:
        evaluated_on: "validation" or "test".
        multi_scale: whether it is also measured at several scales, in the end.
    """

    def measured(name: str, title: str) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=f"{evaluated_on} {title}", unit="%", lower_is_better=False)

    further = [measured("miou_multi_scale", "mIoU, multi-scale"), measured("miou_multi_scale_flip", "mIoU, + flip")]
    return (
        measured("miou", "mIoU"),
        *(further if multi_scale else []),
        measured("accuracy", "pixel accuracy"),
        TRAIN_LOSS,
    )


class ConfusionMatrix:
    """Counts of pixels by true class (rows) and predicted class (columns), from which every metric follows.

    Counts of several processes or images add up: ``processes.add_up(matrix.counts)``, or :meth:`merge`.

    Absent classes are treated as in Cityscapes' script (evalPixelLevelSemanticLabeling.py): the mean leaves out only
    classes with TP + FP + FN = 0, which are neither present nor predicted. A class that is predicted but not present
    has an intersection over union of 0, and counts.

    Args:
        num_classes: C.
        ignore_index: label of pixels that do not count, whatever is predicted there.
        device: where to count.

    Example:
        >>> matrix = ConfusionMatrix(3)
        >>> matrix.add(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 255]))
        >>> matrix.iou().tolist(), matrix.mean_iou(), round(matrix.pixel_accuracy(), 3)
        ([0.5, 0.5, nan], 0.5, 0.667)
    """

    def __init__(self, num_classes: int, ignore_index: int = 255, device: torch.device | str | None = None) -> None:
        positive_integer("num_classes", num_classes)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.counts = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)

    def add(self, predictions: Tensor, targets: Tensor) -> None:
        """Count the pixels of predicted and true labels of the same shape, on any device.

        Raises:
            ValueError: shapes that differ, or a label outside 0..C-1 other than ``ignore_index``.
        """
        if predictions.shape != targets.shape:
            shapes = f"{tuple(predictions.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"predictions and targets must have the same shape, got {shapes}")
        counted = targets != self.ignore_index
        predictions, targets = (labels[counted].to(self.counts.device).long() for labels in (predictions, targets))
        for name, labels in (("predictions", predictions), ("targets", targets)):
            wrong = labels[(labels < 0) | (labels >= self.num_classes)]
            if len(wrong):
                allowed = f"0..{self.num_classes - 1}" + (f" or {self.ignore_index}" if name == "targets" else "")
                raise ValueError(f"{name} must be {allowed}, got {int(wrong[0])}")
        pairs = targets * self.num_classes + predictions
        self.counts += pairs.bincount(minlength=self.num_classes**2).view_as(self.counts)

    def merge(self, other: ConfusionMatrix) -> None:
        """Add what another matrix has counted."""
        if other.num_classes != self.num_classes:
            raise ValueError(f"other must count {self.num_classes} classes, got {other.num_classes}")
        self.counts += other.counts.to(self.counts.device)

    def iou(self) -> Tensor:
        r"""(C,) in float64: :math:`TP / (TP + FP + FN)`; nan for a class that is neither present nor predicted."""
        hits = self.counts.diagonal()
        return hits.double() / (self.counts.sum(0) + self.counts.sum(1) - hits).double()

    def mean_iou(self) -> float:
        """The mean over the classes that have one; nan if none has."""
        return float(self.iou().nanmean())

    def pixel_accuracy(self) -> float:
        """The share of pixels that are labelled right; nan if none was counted."""
        return float(self.counts.diagonal().sum().double() / self.counts.sum().double())

    def iou_by_name(self, classes: Sequence[str]) -> dict[str, float | None]:
        """The intersection over union under the names of the classes; None if there is none.

        Example:
            >>> ConfusionMatrix(2).iou_by_name(["road", "sky"])
            {'road': None, 'sky': None}
        """
        if len(classes) != self.num_classes:
            raise ValueError(f"classes must be {self.num_classes} names, got {len(classes)}")
        values = self.iou().tolist()
        return {name: None if value != value else value for name, value in zip(classes, values, strict=True)}


Predict = Callable[[Tensor], Tensor]
"""Maps images (N, 3, H, W) to probabilities (N, C, H, W), or to logits."""

SCALES = (0.75, 1.0, 1.25, 1.5)
"""Those of the paper's table of Cityscapes."""
SMALLEST_SCALE, LARGEST_SCALE = 0.01, 10
"""Limits of scales; memory grows with the square."""


def whole(network: nn.Module, logits: bool = False) -> Predict:
    """One pass of a network over whole images: the softmax of its logits, in float32 at least.

    Args:
        network: maps images (N, 3, H, W) to logits (N, C, H, W).
        logits: whether to leave the softmax out.
    """

    def predict(images: Tensor) -> Tensor:
        scores = network(images)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return scores if logits else scores.softmax(1)

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
        limits = f"from {SMALLEST_SCALE} to {LARGEST_SCALE}"
        raise ValueError(f"scales must be numbers {limits}, at least one, got {list(scales)}")

    def mean(images: Tensor) -> Tensor:
        size = images.shape[2:]
        total: Tensor | None = None
        for scale in scales:
            scaled = resize_maps(images, [max(1, round(length * scale)) for length in size])
            part = resize_maps(predict(scaled), size)
            total = part if total is None else total.add_(part)
        summed = expect_type(total, Tensor)
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
        summed = expect_type(total, Tensor)
        return summed.div_(counts.to(summed.dtype))

    return mean


def predictor(
    network: nn.Module,
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    crop: tuple[int, int] | None = None,
    logits: bool = False,
) -> Predict:
    """A predictor at each scale by windows of ``crop`` (None: the whole image), each also mirrored if ``flip``.

    Averages are of probabilities, or of ``logits``, as in the evaluation of the toolbox below the authors' code.
    """
    predict = whole(network, logits)
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
        >>> from isda.lab.networks import segmentation
        >>> network = segmentation.create("pspnet-resnet-18", num_classes=5, width=0.125)
        >>> probabilities(network, torch.zeros(3, 40, 60), scales=SCALES, flip=True, crop=(33, 33)).shape
        torch.Size([5, 40, 60])
    """
    if image.ndim != 3:
        raise ValueError(f"image must have shape (3, H, W), got {tuple(image.shape)}")
    predict = predictor(network, scales=scales, flip=flip, crop=crop)
    with in_eval_mode(network):
        return predict(image.unsqueeze(0)).squeeze(0)


@torch.no_grad()
def count_confusion(
    network: nn.Module,
    batches: Iterable[SegmentationBatch],
    classes: int,
    processes: Processes,
    *,
    channels_last: bool = False,
    make_predictor: Callable[[nn.Module], Predict] = whole,
) -> ConfusionMatrix:
    """The confusion matrix over the batches of all processes together; the network's mode is as before afterwards.

    Args:
        network: maps images to logits.
        batches: of this process.
        classes: C.
        processes: that evaluate together.
        channels_last: memory format of the images.
        make_predictor: how images are predicted.
    """
    confusion = ConfusionMatrix(classes, device=processes.device)
    dtype = next(network.parameters()).dtype
    predict = make_predictor(network)
    with in_eval_mode(network):
        for batch in batches:
            confusion.add(predict(to_network_input(batch.images, dtype, channels_last)).argmax(1), batch.targets)
    processes.add_up(confusion.counts)
    return confusion


def confusion_metrics(confusion: ConfusionMatrix) -> dict[str, float]:
    """Mean intersection over union and pixel accuracy, in percent."""
    return {"miou": 100 * confusion.mean_iou(), "accuracy": 100 * confusion.pixel_accuracy()}
