"""Tightness of the bounds: Monte-Carlo expectation and both bounds over checkpoints or strengths, and the page of
`isda tightness`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import ISDALoss
from isda.bounds import augmented_logits, margin_forms, pair_variances, tilted_variance
from isda.covariance import Covariance, FullCovariance, Groups
from isda.lab import seeds
from isda.lab.analysis.inversion.targets import DEFAULT_STRENGTH, symmetric_root
from isda.lab.analysis.markup import Markup, boxed_table, column, number_cell
from isda.lab.analysis.pages import COLOURS, command_line, new_figure, svg_figure, write_page
from isda.lab.analysis.training_features import Observed, observe, run_data
from isda.lab.choices import check_number, expect_type
from isda.lab.engine.config import read_config
from isda.lab.engine.processes import Processes
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import config_errors, find_run
from isda.lab.engine.task import RunContext
from isda.lab.engine.trainer import Trainer
from isda.lab.networks import Network
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.classification.trained import classifier_of
from isda.lab.tasks.common.data import ImageBatch, evaluation_batches, to_network_input

ENTRIES = 2**23
"""Logits that are drawn at once."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of means and its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Bounds:
    """The expected loss over augmented features of N samples, and its bounds; (N,) each, in nats."""

    strength: float
    expected: Tensor
    """E[-log softmax(W a~ + b)_y] over a~ ~ N(a, lambda Sigma_y), estimated."""
    standard_errors: Tensor
    """Of the estimates."""
    published: Tensor
    """Prop. 1."""
    tilted: Tensor

    @property
    def standard_error(self) -> float:
        """Of the mean of ``expected`` due to the draws, with fixed samples."""
        return float(self.standard_errors.square().sum().sqrt()) / len(self.expected)

    @property
    def ratio(self) -> Ratio | None:
        """Mean gap of the tilted bound over that of the published one; None if there is no gap.

        r = sum_i t_i / sum_i p_i for the gaps t_i and p_i of sample i; the standard error is that of a ratio estimate
        over samples, sqrt(sum_i (t_i - r p_i)^2 / (N (N - 1))) / mean p, which includes the noise of the draws.
        """
        tilted, published = self.tilted - self.expected, self.published - self.expected
        mean = float(published.mean())
        if self.strength == 0 or not mean > 0 or len(tilted) < 2:
            return None
        value = float(tilted.mean()) / mean
        residual = tilted - value * published
        error = float(residual.square().sum().sqrt()) / math.sqrt(len(tilted) * (len(tilted) - 1)) / mean
        return Ratio(value, error)


@torch.no_grad()
def measure_bounds(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor,
    covariance: Covariance,
    strength: float,
    draws: int = 1000,
    seed: int = 0,
) -> Bounds:
    """The expected loss and its bounds for rows of logits.

    Logits are drawn instead of features: W (a~ - a) is Gaussian with covariance lambda W Sigma_y W', which is C x C.

    Args:
        logits: (N, C) of the features before augmentation, float64.
        targets: (N,) classes.
        weight: (C, A) of the classifier, float64.
        covariance: of the features of each class, float64.
        strength: lambda.
        draws: per sample, an even number: they are antithetic pairs.
        seed: of the draws.
    """
    if draws < 4 or draws % 2:
        raise ValueError(f"draws must be an even number of at least 4, got {draws}")
    check_number("strength", strength)
    rng = torch.Generator().manual_seed(seed)
    classes, count = logits.shape[1], len(logits)
    own = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    expected, errors, published = (torch.empty(count, dtype=logits.dtype) for _ in range(3))
    at_once = max(1, ENTRIES // (draws * classes))
    for label in targets.unique().tolist():
        gram = weight @ covariance.covariance(label).to(weight) @ weight.T
        root, margins = symmetric_root(gram), pair_variances(gram.unsqueeze(0))[0, label]
        for rows in (targets == label).nonzero().flatten().split(at_once):
            noise = torch.randn(len(rows), draws // 2, classes, generator=rng, dtype=logits.dtype)
            # Antithetic pairs cancel the linear part.
            base, shift = logits[rows].unsqueeze(1), math.sqrt(strength) * (noise @ root)
            pairs = ((base + shift).logsumexp(2) + (base - shift).logsumexp(2)) / 2
            expected[rows] = pairs.mean(1) - own[rows]
            errors[rows] = pairs.std(1) / math.sqrt(draws // 2)
            published[rows] = augmented_logits(logits[rows], margins, strength).logsumexp(1) - own[rows]
    groups = Groups.of(targets, classes)
    variances, forms = margin_forms(weight, covariance, groups, targets)
    variance = tilted_variance(logits, variances, forms, targets, strength)
    tilted = augmented_logits(logits, variance, strength).logsumexp(1) - own if strength else published
    return Bounds(strength, expected, errors, published, tilted)


@dataclass(frozen=True)
class CheckpointBounds:
    """The bounds at one checkpoint."""

    step: int
    epoch: float
    own: bool
    """Whether the covariances are those that the run estimated; else those of its features at the checkpoint."""
    bounds: Bounds


def bounds_at(observed: Observed, strengths: Sequence[float], draws: int = 1000, seed: int = 0) -> list[Bounds]:
    """The bounds of a finished network at given strengths, with the covariances of its final features."""
    logits = observed.logits(observed.features)
    return [
        measure_bounds(logits, observed.labels, observed.weight, observed.covariance, strength, draws, seed)
        for strength in strengths
    ]


def bounds_over_training(
    folder: Path,
    data_root: Path | None = None,
    device: torch.device | str = "cpu",
    *,
    most: int = 500,
    lambda_0: float | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Iterator[CheckpointBounds]:
    """The bounds at each checkpoint of a run, finished or not, the oldest first.

    Training images are not augmented, and batch norm is in eval mode. For an ISDA run, covariances and strength are
    those of its training; for other runs, covariances are those of the features and the strength is lambda_0 t / T.

    Args:
        folder: of a run of a classifier, preferably with many checkpoints (`isda train --checkpoint-steps --keep`).
        data_root: folder of data sets.
        device: to compute on.
        most: images to use, at most.
        lambda_0: strength at the end of training; by default the run's own, or 0.5.
        draws: per image and checkpoint.
        seed: of the draws and the choice of images.

    Raises:
        ValueError: not a run of a classifier, no checkpoint, or its data set has changed.
    """
    run = find_run(folder)
    task, config = classifier_of(run, read_config(run.config_file))
    data = run_data(config, data_root)
    device = torch.device(device)
    with config_errors(run):
        started = task.start(config, data, RunContext(Processes(0, 1, device), folder, data_root))
    job = expect_type(started, Trainer)  # type: ignore[type-abstract]
    indices = task.training(config, data)
    chosen = indices[torch.randperm(len(indices), generator=seeds.generator(seed))[:most]]
    pipeline = task.evaluation_pipeline(config, folder)
    checkpoint = None
    for checkpoint in run.checkpoints:
        job.restore(checkpoint.state)
        batches = evaluation_batches(data.x_train, data.y_train, chosen, pipeline, device)
        outputs = _outputs(job.network, batches, config)
        covariance, strength, own = _of_run(job.method, outputs, data.num_classes)
        share = checkpoint.step / config.total_steps
        if lambda_0 is not None or strength is None:
            strength = (DEFAULT_STRENGTH if lambda_0 is None else lambda_0) * share
        bounds = measure_bounds(outputs.logits, outputs.labels, outputs.weight, covariance, strength, draws, seed)
        yield CheckpointBounds(checkpoint.step, share * config.epochs, own, bounds)
    if checkpoint is None:
        raise ValueError(f"the run in {folder} has no readable checkpoint")


class _Outputs(NamedTuple):
    """Outputs of a network for some images, float64."""

    features: Tensor
    labels: Tensor
    logits: Tensor
    weight: Tensor


@torch.no_grad()
def _outputs(network: nn.Module, batches: Iterable[ImageBatch], config: ClassificationConfig) -> _Outputs:
    network = expect_type(network, Network).eval()
    parts = [
        (
            network.features(to_network_input(batch.images, config.dtype, config.channels_last)).double().cpu(),
            batch.targets.cpu(),
        )
        for batch in batches
    ]
    features, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    head = network.classifier
    weight = head.weight.double().cpu()
    bias = None if head.bias is None else head.bias.double().cpu()
    return _Outputs(features, labels, F.linear(features, weight, bias), weight)


def _of_run(method: nn.Module, outputs: _Outputs, classes: int) -> tuple[Covariance, float | None, bool]:
    """Covariances, strength (None if it has none), and whether the covariances were estimated by the run."""
    criterion = next((part for part in method.modules() if isinstance(part, ISDALoss)), None)
    if criterion is not None:
        return copy.deepcopy(criterion.covariance).cpu().double(), criterion.strength, True
    model = FullCovariance(classes, outputs.features.shape[1], dtype=torch.float64)
    model.update(outputs.features, outputs.labels)
    return model, None, False


WIDE = 10
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""
BOUNDS_COLUMNS = (
    "strength",
    "expectation",
    "published bound",
    "tilted bound",
    "gap, published",
    "gap, tilted",
    "ratio of gaps",
)


def bounds_record(bounds: Bounds) -> dict[str, Any]:
    """The figures as plain values."""
    expected, published, tilted = (
        float(values.mean()) for values in (bounds.expected, bounds.published, bounds.tilted)
    )
    ratio = bounds.ratio
    return {
        "strength": bounds.strength,
        "expected": expected,
        "expected_standard_error": bounds.standard_error,
        "published": published,
        "tilted": tilted,
        "gap_published": published - expected,
        "gap_tilted": tilted - expected,
        "ratio": ratio.value if ratio else None,
        "ratio_standard_error": ratio.standard_error if ratio else None,
        "samples": len(bounds.expected),
    }


def bounds_cells(bounds: Bounds) -> list[str]:
    """The figures as a row of text."""
    record = bounds_record(bounds)
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.3f} ± {record['ratio_standard_error']:.3f}"
    return [
        f"{bounds.strength:.3g}",
        f"{record['expected']:.4f} ± {record['expected_standard_error']:.4f}",
        *(f"{record[key]:.4f}" for key in ("published", "tilted", "gap_published", "gap_tilted")),
        ratio,
    ]


def write_tightness(
    path: Path,
    title: str,
    checkpoints: Sequence[CheckpointBounds],
    finished: Sequence[Bounds],
    draws: int,
    command: str,
) -> None:
    """Write the page of the bounds over training, and of those of the finished network at given strengths."""
    parts: list[str] = []
    over_training = [checkpoint.bounds for checkpoint in checkpoints]
    if checkpoints:
        epochs = [checkpoint.epoch for checkpoint in checkpoints]
        parts += _section(over_training, epochs, "epoch", "over training", epochs)
    if finished:
        strengths = [bounds.strength for bounds in finished]
        parts += _section(finished, strengths, "strength λ", "of the finished network", None)
    count = len((finished or over_training)[0].expected)
    own = any(checkpoint.own for checkpoint in checkpoints)
    lede = (
        f"The expected cross-entropy over augmented features by {draws:,} draws for each of {count:,} training images, "
        "and two upper bounds of it, means over images in nats. "
        + ("Over training, covariances and strength are those of the run at each checkpoint." if own else "")
    )
    write_page(path, "isda tightness", title, lede, parts, command)


def _section(
    bounds: Sequence[Bounds], across: Sequence[float], unit: str, when: str, epochs: Sequence[float] | None
) -> list[Markup]:
    records = [bounds_record(point) for point in bounds]
    figure, (values, gaps) = new_figure(2)
    lines = (("expected", "expectation", "-", "o"), ("published", "published bound", "--", "s"))
    for number, (key, label, style, mark) in enumerate((*lines, ("tilted", "tilted bound", ":", "^"))):
        drawing: dict[str, Any] = {"color": COLOURS[number], "linestyle": style, "marker": mark, "markersize": 4}
        values.plot(across, [record[key] for record in records], label=label, **drawing)
        if number:
            gaps.plot(across, [record[f"gap_{key}"] for record in records], label=label, **drawing)
    for axes, name in ((values, "loss, nats"), (gaps, "bound − expectation, nats")):
        axes.set(xlabel=unit, ylabel=name)
        axes.legend(frameon=False, fontsize=8)
    for axes, keys in ((values, ("expected",)), (gaps, ("gap_tilted", "gap_published"))):
        shown = [record[key] for record in records for key in keys]
        if 0 < WIDE * min(shown) < max(shown):
            axes.set_yscale("log")
    picture = svg_figure(figure, f"The expectation and its bounds {when}; right: the gaps between them.")
    first = [] if epochs is None else [column("epoch", numeric=True)]
    head = [*first, *(column(name, numeric=True) for name in BOUNDS_COLUMNS)]
    rows = [
        [*([] if epochs is None else [number_cell(f"{epochs[row]:.1f}")]), *map(number_cell, bounds_cells(point))]
        for row, point in enumerate(bounds)
    ]
    caption = "Ratio of gaps: mean gap of the tilted bound over that of the published one, ± its standard error."
    return [picture, boxed_table(f"Bounds {when}", caption, head, rows)]


@dataclass(frozen=True, kw_only=True)
class TightnessOptions:
    """Options of `isda tightness`."""

    strengths: tuple[float, ...] = ()
    lambda_0: float | None = None
    images: int = 500
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 2:
            raise ValueError(f"images must be at least 2, got {self.images}")


def draw_tightness(
    run: Path,
    out: Path,
    options: TightnessOptions,
    data_root: Path | None,
    device: torch.device,
    watched: Callable[[Iterable[CheckpointBounds]], Iterable[CheckpointBounds]] = iter,
) -> tuple[str, list[CheckpointBounds], list[Bounds]]:
    """Measure at every checkpoint and write the page; return its title and the bounds over training and at the end.

    ``watched`` wraps the iteration over checkpoints, to show progress.
    """
    points = bounds_over_training(
        run, data_root, device, most=options.images, lambda_0=options.lambda_0, draws=options.draws, seed=options.seed
    )
    opened = find_run(run)
    # A short run, or one of another machine, has no checkpoints: then the finished network is measured.
    finished_only = opened.finished and not opened.checkpoints.steps
    checkpoints = [] if finished_only else list(watched(points))
    finished: list[Bounds] = []
    if options.strengths or finished_only:
        observed = observe(run, data_root, device, most=options.images)
        own = options.lambda_0, observed.trained.config.method_options.get("lambda_0"), DEFAULT_STRENGTH
        strength = next(value for value in own if isinstance(value, int | float))
        finished = bounds_at(observed, options.strengths or (strength,), options.draws, options.seed)
    stored = read_config(RunFolder(run).config_file)
    title = f"How tight the bounds are: {stored['network']} on {stored['data']}, {stored['method']}"
    command = command_line("tightness", run, **asdict(options), out=out)
    write_tightness(out, title, checkpoints, finished, options.draws, command)
    return title, checkpoints, finished
