"""The linear probe as a task of the engine: one step, which is the whole fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from isda import __version__
from isda.classification.evaluation import Tally
from isda.classification.figures import BASELINES, figures_for
from isda.classification.resolving import check_held_out
from isda.classification.split import Evaluation, available
from isda.data import DataSet, balanced_sample, load
from isda.engine.folder.checkpoint import State
from isda.engine.folder.config import RunConfig
from isda.engine.settings import RunSettings
from isda.engine.task import Job, Place, Task
from isda.errors import of_type
from isda.transfer.linear_probe import LinearProbe, fit_probe
from isda.transfer.seeing import features
from isda.transfer.source import Source, load_source

__all__ = ["LinearProbing", "ProbeConfig", "ProbeSettings", "ProbingJob"]


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(RunSettings):
    """A backbone and a data set; all else follows from them."""

    source: str | None = None
    """The run folder of the backbone."""
    labels: int | None = None
    """Probe with this many images, equally many of each class, drawn with the backbone's seed; all by default."""
    held_out: int | None = None
    """Hold out this many training images and judge by them instead of the test set."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(RunConfig):
    """Method and seed are the backbone's."""

    source: str
    source_data: str
    source_sha256: str
    labels: int | None
    held_out: int
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
    told: ClassVar[dict[str, str]] = {"data_digest": "the data set has changed since the run was started"}


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
        left = check_held_out(settings.held_out, len(data.y_train))
        if settings.labels is not None and not 0 < settings.labels <= left:
            raise ValueError(f"labels must be from 1 to {left}, the images not held out, got {settings.labels}")
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
            asked=settings.asked(),
            version=__version__,
            labels=settings.labels,
            held_out=settings.held_out or 0,
            classes=data.classes,
            train_images=left if settings.labels is None else settings.labels,
            test_images=settings.held_out or len(data.y_test),
            data_digest=data.digest,
            **source.fields,
        )

    def start(self, config: ProbeConfig, data: DataSet, place: Place) -> Job:
        """The run, before its one step."""
        source = load_source(Path(config.source))
        if source.sha256 != config.source_sha256:
            raise ValueError(f"{config.source} holds another network than when the probe was planned")
        return ProbingJob(config, data, source, place)


class ProbingJob(Job):
    """Features of the training images, the fit, and what it is worth on those that judge it.

    Several processes do the same work: a fit takes seconds.
    """

    config: ProbeConfig

    def __init__(self, config: ProbeConfig, data: DataSet, source: Source, place: Place) -> None:
        self.config, self.processes = config, place.processes
        self.data, self.source = data, source
        self.training, self.evaluation = _split(config, data)
        self.probe: LinearProbe | None = None

    def batches(self, epoch: int, start: int) -> Iterator[Tensor]:
        """All images at once."""
        yield self.training

    def step(self, batch: Tensor, step: int) -> None:
        """Fit."""
        rows = features(self.source.trained, self.data.x_train, batch, self.processes.device)
        self.probe = fit_probe(rows, self.data.y_train[batch], len(self.config.classes))

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """Error, likelihood and calibration."""
        images, labels, indices = self.evaluation
        probe = of_type(self.probe, LinearProbe)
        tally = Tally(len(self.config.classes))
        tally.add(probe(features(self.source.trained, images, indices, self.processes.device)), labels[indices])
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


def _split(config: ProbeConfig, data: DataSet) -> tuple[Tensor, Evaluation]:
    training, evaluation = available(data, config.held_out)
    if config.labels is None:
        return training, evaluation
    return training[balanced_sample(data.y_train[training], config.labels, seed=config.seed)], evaluation
