"""FID, KID, diversity and label accuracy of generated images on the features of a classifier, in float64.

The classifier replaces Inception: values compare generators under one judge, not across publications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.lab.choices import expect_type
from isda.lab.data import DataSet
from isda.lab.engine.config import Curve, Figure
from isda.lab.engine.loop import train
from isda.lab.engine.processes import Processes
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import open_finished_run
from isda.lab.engine.settings import AUTO
from isda.lab.files import file_digest
from isda.lab.networks.generative import ImageGenerator
from isda.lab.seeds import generator
from isda.lab.tasks.classification.resolve import resolve
from isda.lab.tasks.classification.settings import ClassificationSettings
from isda.lab.tasks.classification.task import Classification
from isda.lab.tasks.classification.trained import TrainedClassifier, load_classifier
from isda.lab.tasks.common.data import split_data
from isda.lab.tasks.common.generators import TrainedGenerator, load_generator, make_images
from isda.lab.tasks.gan.settings import GANConfig


def figures_for(evaluated_on: str) -> tuple[Figure, ...]:
    """The figures of a run, the Fréchet distance first.

    Args:
        evaluated_on: "test" or "held-out": the real images that generated ones are compared to.
    """

    def measured(name: str, title: str, unit: str = "", digits: int = 2, *, lower: bool = True) -> Figure:
        metric = f"{evaluated_on}/{name}"
        return Figure(name=name, metric=metric, title=title, unit=unit, digits=digits, lower_is_better=lower)

    return (
        measured("fid", "FID on the judge's features"),
        measured("kid", "KID on the judge's features", digits=4),
        measured("diversity", "diversity within classes, of real images'", lower=False),
        measured("accuracy", "intended label seen by the judge", "%", lower=False),
    )


def curves_for(evaluated_on: str) -> tuple[Curve, ...]:
    """What pages show besides the Fréchet distance."""
    return (
        Curve(metric=f"{evaluated_on}/accuracy", title="Intended label seen by the judge", unit="%"),
        Curve(metric=f"{evaluated_on}/diversity", title="Diversity within classes, of real images'"),
        Curve(metric="train/generator", title="Loss of the generator", unit="loss"),
        Curve(metric="train/discriminator", title="Loss of the discriminator", unit="loss"),
    )


ROWS_AT_ONCE = 1000


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """|m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)) of means and covariances: FID (Heusel et al., 2017).

    (S S')^(1/2) has the trace of (S^(1/2) S' S^(1/2))^(1/2), which is symmetric: two eigen-decompositions and no
    complex numbers.

    Args:
        real: (N, A) features.
        generated: (M, A) features.

    Example:
        >>> points = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
        >>> round(frechet_distance(points, points + torch.tensor([3.0, 4.0])), 9)
        25.0
    """
    (mean, covariance), (other_mean, other_covariance) = (_moments(rows) for rows in (real, generated))
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    between = torch.linalg.eigvalsh(root @ other_covariance @ root).clamp(min=0).sqrt().sum()
    distance = (mean - other_mean).square().sum() + covariance.trace() + other_covariance.trace() - 2 * between
    return float(distance)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"features must be (N, A) with N at least 2, got shape {tuple(rows.shape)}")
    rows = rows.double()
    return rows.mean(0), rows.T.cov()


def kernel_distance(real: Tensor, generated: Tensor) -> float:
    """The unbiased estimate of the squared MMD with the kernel k(x, y) = (x.y / A + 1)^3: KID (Binkowski et al., 2018).

    sum_{i != j} k(x_i, x_j) / (N (N - 1)) + the same of y - 2 sum_ij k(x_i, y_j) / (N M); of all images at once, where
    the publication averages over subsets. It may be negative.

    Args:
        real: (N, A) features x.
        generated: (M, A) features y.

    Example:
        >>> kernel_distance(torch.zeros(3, 2), torch.ones(3, 2))
        7.0
    """
    for rows in (real, generated):
        _moments(rows)
    x, y = real.double(), generated.double()
    return float(_mean_kernel(x, x, own=True) + _mean_kernel(y, y, own=True) - 2 * _mean_kernel(x, y))


def _mean_kernel(x: Tensor, y: Tensor, *, own: bool = False) -> Tensor:
    """The mean of k over all pairs, without those of a row with itself if x and y are the same."""
    total = x.new_zeros(())
    for part in x.split(ROWS_AT_ONCE):
        total += (part @ y.T / x.shape[1] + 1).pow(3).sum()
    if not own:
        return total / (len(x) * len(y))
    total -= (x.square().sum(1) / x.shape[1] + 1).pow(3).sum()
    return total / (len(x) * (len(x) - 1))


def spread_by_class(features: Tensor, labels: Tensor, num_classes: int) -> list[float | None]:
    """For each class the mean distance of two of its images; None if there are fewer than two.

    Example:
        >>> spread_by_class(torch.tensor([[0.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]), 2)
        [3.0, None]
    """
    spreads: list[float | None] = []
    for label in range(num_classes):
        rows = features[labels == label].double()
        pairs = len(rows) * (len(rows) - 1)
        # Differences, not products: rounding must not dominate the distances of images that are nearly the same.
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        spreads.append(float(distances.sum()) / pairs if pairs else None)
    return spreads


def diversity_by_class(
    real: Tensor, real_labels: Tensor, generated: Tensor, labels: Tensor, num_classes: int
) -> list[float | None]:
    """For each class the mean distance of two generated images over that of two real ones: 1 is as diverse.

    Args:
        real: (N, A) features.
        real_labels: (N,) classes.
        generated: (M, A) features.
        labels: (M,) the intended classes.
        num_classes: K.

    Example:
        >>> zero = torch.tensor([0, 0])
        >>> diversity_by_class(torch.tensor([[0.0], [4.0]]), zero, torch.tensor([[1.0], [2.0]]), zero, 1)
        [0.25]
    """
    spreads = spread_by_class(real, real_labels, num_classes), spread_by_class(generated, labels, num_classes)
    return [fake / true if true and fake is not None else None for true, fake in zip(*spreads, strict=True)]


JUDGE_FOLDER = "judge"
"""The folder, within the run's, of a judge that was trained for the run."""

STEPS = 1000
MOST_EPOCHS = 20
BATCH_SIZE = 128
WIDTH = 0.5
IMAGES_AT_ONCE = 500


@dataclass(frozen=True)
class JudgeOutputs:
    """Features and predictions of a judge, on the CPU."""

    features: Tensor
    """(N, A) float64."""
    classes: Tensor
    """(N,) predictions."""

    @classmethod
    def joined(cls, parts: list[JudgeOutputs]) -> JudgeOutputs:
        """The outputs of several parts."""
        return cls(torch.cat([part.features for part in parts]), torch.cat([part.classes for part in parts]))


@dataclass(frozen=True)
class Judge:
    """A trained classifier that generated images are evaluated with."""

    trained: TrainedClassifier
    sha256: str
    """Digest of its weights."""

    @torch.no_grad()
    def outputs(self, images: Tensor, device: torch.device) -> JudgeOutputs:
        """Features and predictions of uint8 images (N, C, H, W)."""
        trained, parts = self.trained, []
        network = trained.network.to(device)
        for part in images.split(IMAGES_AT_ONCE):
            features = network.features(trained.pipeline(part.to(device)).to(trained.config.dtype))
            classes = network.classifier(features).argmax(1)
            parts.append(JudgeOutputs(features.double().cpu(), classes.cpu()))
        return JudgeOutputs.joined(parts)


def load_judge(folder: Path, data: DataSet) -> Judge:
    """The classifier of a finished run of `isda train`.

    Raises:
        ValueError: no such run, or one on other images or classes than those of the data set.
    """
    trained = load_classifier(folder)
    config = trained.config
    if (config.classes, config.channels, config.image_size) != (data.classes, data.channels, data.image_size):
        raise ValueError(
            f"judge must be a classifier of the classes and images of {data.name}, got {folder}, which is of "
            f"{len(config.classes)} classes of {config.data}"
        )
    return Judge(trained, file_digest(RunFolder(folder).weights_file))


def train_judge(folder: Path, data: DataSet, held_out: int, processes: Processes) -> Judge:
    """A small network trained by cross-entropy on all images that are not held out; trained once per run folder.

    It depends on the data only, so runs can be compared.
    """
    images = len(data.y_train) - held_out
    size = max(1, min(BATCH_SIZE, images // 4))
    epochs = max(1, min(MOST_EPOCHS, round(STEPS * size / images)))
    settings = ClassificationSettings(
        data=data.name,
        network="fast-cnn",
        width=WIDTH,
        method="cross-entropy",
        held_out=held_out or AUTO,
        batch_size=size,
        epochs=epochs,
        evaluate_every=epochs,
    )
    train(resolve(settings, data), data, folder, task=Classification(), processes=processes)
    return load_judge(folder, data)


MOST_IMAGES = 5000
"""Most real images to compare to: the first of the test set, or of those held out."""

# Distinguishes these random numbers from those of steps and epochs.
_EVALUATION = 0x6D656173


@dataclass(frozen=True)
class GeneratorMetrics:
    """Figures of one generator."""

    fid: float
    kid: float
    diversity: dict[str, float | None]
    """By class, relative to real images."""
    accuracy: dict[str, float | None]
    """By class, the share of images whose prediction is the intended class."""
    right: float
    """The same over all classes, in percent."""

    @property
    def mean_diversity(self) -> float:
        """Over the classes that have it; 0 if none has."""
        known = [value for value in self.diversity.values() if value is not None]
        return sum(known) / len(known) if known else 0.0

    def figures(self) -> dict[str, float]:
        """The figures by name, and the diversity of the least diverse class."""
        least = min((value for value in self.diversity.values() if value is not None), default=0.0)
        return {
            "fid": self.fid,
            "kid": self.kid,
            "diversity": self.mean_diversity,
            "least_diversity": least,
            "accuracy": self.right,
        }

    def per_class(self) -> dict[str, Any]:
        """As result.json has it."""
        return {"diversity": self.diversity, "accuracy": self.accuracy}


@dataclass(frozen=True)
class GeneratorComparison:
    """The judge's outputs on real images, which generators are compared to."""

    judge: Judge
    real: JudgeOutputs
    labels: Tensor
    """(N,) of the real images; as many are generated of each class."""
    classes: tuple[str, ...]
    processes: Processes

    @classmethod
    def to(
        cls, images: Tensor, labels: Tensor, classes: tuple[str, ...], judge: Judge, processes: Processes
    ) -> GeneratorComparison:
        """Compare to the first of these uint8 images (N, C, H, W) with classes (N,)."""
        images, labels = images[:MOST_IMAGES], labels[:MOST_IMAGES].cpu()
        return cls(judge, judge.outputs(images, processes.device), labels, classes, processes)

    def measure(self, network: ImageGenerator, seed: int) -> GeneratorMetrics:
        """The figures of a generator, the same in all processes; latent vectors are drawn with the seed."""
        processes = self.processes
        images = make_images(network, self.labels, generator(seed, _EVALUATION))
        mine = self.judge.outputs(images.tensor_split(processes.world)[processes.rank], processes.device)
        return compare_features(
            self.real, self.labels, JudgeOutputs.joined(processes.gather([mine])), self.labels, self.classes
        )


def compare_features(
    real: JudgeOutputs, real_labels: Tensor, generated: JudgeOutputs, labels: Tensor, classes: Sequence[str]
) -> GeneratorMetrics:
    """All figures, from the outputs of a judge.

    Args:
        real: of real images.
        real_labels: (N,) their classes.
        generated: of generated images.
        labels: (M,) their intended classes.
        classes: their names.
    """
    diversity = diversity_by_class(real.features, real_labels, generated.features, labels, len(classes))
    hits = (generated.classes == labels).double()
    shares = [float(hits[labels == label].mean()) if (labels == label).any() else None for label in range(len(classes))]
    return GeneratorMetrics(
        fid=frechet_distance(real.features, generated.features),
        kid=kernel_distance(real.features, generated.features),
        diversity=dict(zip(classes, diversity, strict=True)),
        accuracy=dict(zip(classes, shares, strict=True)),
        right=100 * float(hits.mean()),
    )


@dataclass(frozen=True)
class GeneratorRun:
    """A generator with its final weights, and the configuration it was trained with."""

    config: GANConfig
    generator: TrainedGenerator

    def judge(self, data: DataSet, named: Path | None = None) -> Judge:
        """The judge of the run, or another one."""
        return load_judge(named or Path(self.config.judge or self.generator.folder / JUDGE_FOLDER), data)

    def measure(self, data: DataSet, judge: Judge, processes: Processes, seed: int | None = None) -> GeneratorMetrics:
        """Its figures, against the images that the run was compared to.

        Args:
            data: the run's data set.
            judge: of the images.
            processes: that measure.
            seed: of the latent vectors; the run's by default.

        Raises:
            ValueError: the data set has changed.
        """
        config = self.config
        if config.data_digest != data.digest:
            raise ValueError(f"{data.name} must be the data set of the run, it has changed since the run was started")
        images, labels, indices = split_data(config, data)[1]
        real = expect_type(images[indices], Tensor)
        comparison = GeneratorComparison.to(real, labels[indices], config.classes, judge, processes)
        return comparison.measure(self.generator.network.to(processes.device), config.seed if seed is None else seed)


def load_generator_run(folder: Path) -> GeneratorRun:
    """The generator of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    generator = load_generator(folder)
    run, stored = open_finished_run(folder)
    return GeneratorRun(GANConfig.from_stored(stored, run.config_file), generator)
