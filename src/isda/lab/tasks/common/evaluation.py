"""Error, negative log-likelihood and calibration of a classifier, and how reports name them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.lab.devices import in_eval_mode
from isda.lab.engine.config import Curve, Figure
from isda.lab.engine.processes import Processes
from isda.lab.tasks.common.data import ImageBatch, to_network_input
from isda.lab.tasks.common.predictions import BINS, Predictions


class Tally:
    """Sums over samples, from which every metric follows; sums of several processes add up.

    Args:
        classes: C; the top-5 error is kept for more than 5 classes.
        device: of the sums.
        keep: whether to keep the prediction of each sample.
    """

    def __init__(self, classes: int, device: torch.device | None = None, *, keep: bool = False) -> None:
        self.top = 5 if classes > 5 else 1
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        # Per bin of confidence: samples, sum of confidences, sum of hits.
        self.bins = torch.zeros(3, BINS, dtype=torch.float64, device=device)
        self.keep = keep
        # Per batch: predicted classes, confidences.
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits (N, C) and class indices (N,)."""
        # 16-bit logits would lose the last digits of the likelihood.
        logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
        log_probabilities = logits.log_softmax(1)
        ranked = logits.topk(self.top, 1).indices
        hits = ranked == targets.unsqueeze(1)
        nll = F.nll_loss(log_probabilities, targets, reduction="sum").double()
        best = hits[:, 0].double()
        self.sums += torch.stack([torch.ones_like(best).sum(), best.sum(), hits.any(1).double().sum(), nll])
        confidence = log_probabilities.amax(1).exp().double()
        bin_of = (confidence * BINS).long().clamp(0, BINS - 1)
        self.bins.index_add_(1, bin_of, torch.stack([torch.ones_like(best), confidence, best]))
        if self.keep:
            self.kept.append((ranked[:, 0], confidence))

    def predictions(self, labels: Tensor, indices: Tensor, processes: Processes) -> Predictions:
        """The kept predictions of all processes.

        Args:
            labels: (N,) of the evaluation images of all processes.
            indices: (N,) their positions in the data set; each process has evaluated a consecutive part.
            processes: that have evaluated together.
        """
        predicted, confidence = (torch.cat(column).cpu() for column in zip(*self.kept, strict=True))
        parts = processes.gather([(predicted, confidence)])
        predicted, confidence = (torch.cat(column) for column in zip(*parts, strict=True))
        # A network whose outputs are NaN has no confidence.
        return Predictions(indices.cpu(), labels.cpu(), predicted, confidence.float().nan_to_num(0.0))

    def measures(self) -> dict[str, float]:
        """Top-1 and top-5 error and expected calibration error in percent, mean negative log-likelihood.

        The calibration error is sum_b n_b / n |accuracy_b - confidence_b| over 15 equal bins of confidence (Guo et
        al., 2017).
        """
        count, best, among_top, nll = self.sums.tolist()
        _, confidence, hits = self.bins
        result = {"error": 100 * (1 - best / count)}
        if self.top > 1:
            result["error_top5"] = 100 * (1 - among_top / count)
        result["nll"] = nll / count
        result["calibration"] = 100 * float((hits - confidence).abs().sum()) / count
        return result


def evaluate(
    network: nn.Module,
    batches: Iterable[ImageBatch],
    classes: int,
    processes: Processes,
    channels_last: bool = False,
) -> dict[str, float]:
    """Metrics of a network over the batches of all processes together; the network's mode is restored.

    Args:
        network: maps images to logits.
        batches: of this process.
        classes: C.
        processes: that evaluate together.
        channels_last: memory format of the images.
    """
    return count(network, batches, classes, processes, channels_last).measures()


@torch.no_grad()
def count(
    network: nn.Module,
    batches: Iterable[ImageBatch],
    classes: int,
    processes: Processes,
    channels_last: bool = False,
    *,
    keep: bool = False,
) -> Tally:
    """The sums behind `evaluate`; with ``keep``, the predictions as well."""
    tally = Tally(classes, processes.device, keep=keep)
    dtype = next(network.parameters()).dtype
    with in_eval_mode(network):
        for batch in batches:
            tally.add(network(to_network_input(batch.images, dtype, channels_last)), batch.targets)
    processes.add_up(tally.sums)
    processes.add_up(tally.bins)
    return tally


BASELINES = ("cross-entropy", "supervised")
"""Methods that the others are compared to."""

CURVES = (
    Curve(metric="train/loss", title="Training loss", unit="loss", logarithmic=True),
    Curve(metric="strength", title="Strength λ of ISDA", unit="λ"),
    Curve(metric="margin_variance", title="Mean margin variance", unit="variance", logarithmic=True),
)
"""What pages show besides the first figure."""

TRAIN_LOSS = Figure(name="train_loss", metric="train/loss", title="training loss", digits=4, averaged=False)


def figures_for(evaluated_on: str, num_classes: int) -> tuple[Figure, ...]:
    """The figures of a run, the error first.

    Args:
        evaluated_on: "test" or "held-out".
        num_classes: the top-5 error is measured for more than 5.
    """

    def measured(name: str, title: str, unit: str = "", digits: int = 2) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=f"{evaluated_on} {title}", unit=unit, digits=digits)

    top = [measured("error_top5", "top-5 error", "%")] if num_classes > 5 else []
    return (
        measured("error", "error", "%"),
        *top,
        measured("nll", "negative log-likelihood", digits=3),
        measured("calibration", "calibration error", "%"),
        TRAIN_LOSS,
    )
