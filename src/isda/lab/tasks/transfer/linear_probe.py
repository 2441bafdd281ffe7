"""Linear probe: logistic regression on fixed features, its penalty chosen on held-out ones; also as a task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from isda import __version__
from isda.lab.choices import expect_type
from isda.lab.data import DataSet, hold_out, load
from isda.lab.engine.checkpoint import State
from isda.lab.engine.config import RunConfig
from isda.lab.engine.settings import Auto, RunSettings, auto
from isda.lab.engine.task import Job, RunContext, Task
from isda.lab.tasks.common.data import count_training_images, split_data
from isda.lab.tasks.common.evaluation import BASELINES, Tally, figures_for
from isda.lab.tasks.transfer.features import Source, extract_features, load_source

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Of scikit-learn's C, the inverse penalty; the grid grows by decades while its edge wins."""
WIDEST = (1e-9, 1e6)
HELD_OUT_SHARE = 0.2
HOLD_OUT_SEED = 0


@dataclass(frozen=True)
class LinearProbe:
    """logits = features weight' + bias."""

    weight: Tensor
    """(C, A)"""
    bias: Tensor
    """(C,)"""
    penalty: float
    """The C that was chosen."""
    tried: dict[float, float]
    """Mean negative log-likelihood on held-out features by C."""

    def __call__(self, features: Tensor) -> Tensor:
        """(N, C) logits of features (N, A)."""
        return F.linear(features, self.weight, self.bias)


def fit_probe(features: Tensor, labels: Tensor, classes: int) -> LinearProbe:
    """Minimise C sum_i CE(W x_i + b, y_i) + |W|^2 / 2 over standardised features x, for the best C on held-out ones.

    A fifth of the samples is held out with the class proportions of all to choose C by its log-likelihood; the probe is
    then fitted to all of them. The problem is convex, nothing is random, and the standardisation is folded into the
    weights that are returned.

    Args:
        features: (N, A) float64.
        labels: (N,) class indices, at least two different ones.
        classes: C.

    Raises:
        ValueError: fewer than two classes, or too few samples to hold some out.
    """
    seen = labels.unique()
    if len(seen) < 2:
        raise ValueError(f"labels must name at least two classes to probe, got {len(seen)}")
    held = int(HELD_OUT_SHARE * len(labels))
    if held < 1:
        raise ValueError(f"a probe needs at least {int(1 / HELD_OUT_SHARE)} labelled images, got {len(labels)}")
    mean, std = features.mean(0), features.std(0, correction=0)
    scale = torch.where(std > 0, std, torch.ones_like(std))
    rows = (features - mean) / scale
    fitted, held_out = hold_out(labels, held, seed=HOLD_OUT_SEED)
    if len(labels[fitted].unique()) < 2:
        raise ValueError(f"{len(labels)} labelled images are too few to hold some out and keep two classes")

    def held_out_loss(penalty: float) -> float:
        weight, bias = _fit(rows[fitted], labels[fitted], classes, penalty)
        return float(F.cross_entropy(F.linear(rows[held_out], weight, bias), labels[held_out]))

    penalty, tried = widening_search(held_out_loss, PENALTIES)
    weight, bias = _fit(rows, labels, classes, penalty)
    weight = weight / scale
    return LinearProbe(weight, bias - weight @ mean, penalty, tried)


def widening_search(loss: Callable[[float], float], grid: tuple[float, ...]) -> tuple[float, dict[float, float]]:
    """The value with the lowest loss on a grid by decades, which is extended while the best value is at its edge.

    Example:
        >>> best, tried = widening_search(lambda c: abs(c - 100.0), (0.1, 1.0))
        >>> best, max(tried)
        (100.0, 1000.0)
    """
    tried = {value: loss(value) for value in grid}
    while True:
        best = min(tried, key=lambda value: tried[value])
        lowest, highest = min(tried), max(tried)
        if best == lowest and lowest > WIDEST[0]:
            further = 10.0 ** (round(math.log10(lowest)) - 1)
        elif best == highest and highest < WIDEST[1]:
            further = 10.0 ** (round(math.log10(highest)) + 1)
        else:
            return best, dict(sorted(tried.items()))
        tried[further] = loss(further)


def _fit(rows: Tensor, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Weights (C, A) and biases (C,) for all classes; one that was not seen is never the answer."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=penalty, tol=1e-5, max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(rows.numpy(), labels.numpy())
        except ConvergenceWarning as error:
            raise ValueError(f"the linear probe with C={penalty:g} did not converge: {error}") from error
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(weight) == 1:
        # scikit-learn has one row for two classes: the difference of their logits.
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    seen = torch.from_numpy(model.classes_)
    everyone = rows.new_zeros(classes, rows.shape[1]).index_copy(0, seen, weight)
    # Not minus infinity: the log-likelihood of a label that was never seen stays a number.
    return everyone, torch.full((classes,), float(bias.min()) - 30.0, dtype=rows.dtype).index_copy(0, seen, bias)


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(RunSettings):
    """A backbone and a data set; all else follows from them."""

    source: Auto[str] = auto()
    """The run folder of the backbone."""
    labels: int | None = None
    """Probe with this many images, equally many of each class, drawn with the backbone's seed; all by default."""
    held_out: Auto[int] = auto(0)
    """Hold out this many training images and judge by them instead of the test set."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(ProbeSettings, RunConfig):
    """Method and seed are the backbone's."""

    source_data: str
    source_sha256: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    data_digest: str
    network_options: dict[str, Any] = field(default_factory=dict)

    of_run: ClassVar[tuple[str, ...]] = ("source", "source_sha256")
    change_messages: ClassVar[dict[str, str]] = {"data_digest": "the data set has changed since the run was started"}


class LinearProbing(Task):
    """A linear classifier on the features of a finished run."""

    name = "linear-probe"
    settings_type: ClassVar[type[RunSettings]] = ProbeSettings
    config_type: ClassVar[type[RunConfig]] = ProbeConfig

    def methods(self) -> Sequence[str]:
        """None of its own: a probe is known by the method of its backbone."""
        return ()

    def load(self, data: str | None, root: Path | None = None) -> DataSet:
        """The data set of a name, a folder or a file."""
        return load(data or "digits", root)

    def resolve(self, settings: ProbeSettings, data: DataSet) -> ProbeConfig:
        """The backbone's settings and the data set's."""
        source = load_source(Path(settings.source or ""))
        evaluated_on: Literal["held-out", "test"] = "held-out" if settings.held_out else "test"
        return ProbeConfig(
            task=self.name,
            data=data.name,
            scale=source.trained.config.scale,
            epochs=1,
            steps_per_epoch=1,
            evaluated_on=evaluated_on,
            figures=figures_for(evaluated_on, data.num_classes)[:-1],
            baselines=BASELINES,
            settings=settings.given(),
            version=__version__,
            labels=settings.labels,
            held_out=settings.held_out or 0,
            classes=data.classes,
            train_images=count_training_images(settings.held_out, settings.labels, len(data.y_train)),
            test_images=settings.held_out or len(data.y_test),
            data_digest=data.digest,
            **source.fields,
        )

    def start(self, config: ProbeConfig, data: DataSet, context: RunContext) -> Job:
        """The run, before its one step."""
        source = load_source(Path(config.source))
        if source.sha256 != config.source_sha256:
            raise ValueError(f"{config.source} holds another network than when the probe was planned")
        return ProbingJob(config, data, source, context)


class ProbingJob(Job):
    """Features of the training images, the fit, and what it is worth on those that judge it.

    Several processes do the same work: a fit takes seconds.
    """

    config: ProbeConfig

    def __init__(self, config: ProbeConfig, data: DataSet, source: Source, context: RunContext) -> None:
        self.config, self.processes = config, context.processes
        self.data, self.source = data, source
        self.training, self.evaluation = split_data(config, data)
        self.probe: LinearProbe | None = None

    def batches(self, epoch: int, start: int) -> Iterator[Tensor]:
        """All images at once."""
        yield self.training

    def step(self, batch: Tensor, step: int) -> None:
        """Fit."""
        rows = extract_features(self.source.trained, self.data.x_train, batch, self.processes.device)
        self.probe = fit_probe(rows, self.data.y_train[batch], len(self.config.classes))

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """Error, likelihood and calibration."""
        images, labels, indices = self.evaluation
        probe = expect_type(self.probe, LinearProbe)
        tally = Tally(len(self.config.classes))
        tally.add(probe(extract_features(self.source.trained, images, indices, self.processes.device)), labels[indices])
        on = self.config.evaluated_on
        measured = {f"{on}/{name}": value for name, value in tally.measures().items()}
        return {"epoch": epoch, "step": step, "penalty": probe.penalty} | measured

    def state(self) -> State:
        """The probe, if it is fitted."""
        rest = {} if self.probe is None else {"penalty": self.probe.penalty, "tried": self.probe.tried}
        return State({"probe": self.weights()}, rest)

    def restore(self, state: State) -> None:
        """Take up the probe."""
        probe = state.tensors["probe"]
        if probe:
            self.probe = LinearProbe(probe["weight"], probe["bias"], state.rest["penalty"], state.rest["tried"])

    def weights(self) -> dict[str, Tensor]:
        """(C, A) weights and (C,) biases on the features as they are."""
        return {} if self.probe is None else {"weight": self.probe.weight, "bias": self.probe.bias}
