"""Methods for long-tailed data: logit adjustment, LDAM, class-balanced weights, RISDA and MetaSAug.

Without ``+isda`` the strength is 0 and the criterion is cross-entropy with offsets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from isda._utils.errors import expect_type
from isda._utils.seeds import generator, mix
from isda.covariance import ConfusionCovariance, CovarianceModel, ScaledCovariance, create
from isda.functional.long_tail import class_balanced_weights, class_counts
from isda.lab.engine.settings import learning_rate
from isda.lab.networks import Network
from isda.lab.tasks.classification.methods.base import CombinableMethod
from isda.lab.tasks.classification.settings import ClassificationConfig, counts_for
from isda.lab.tasks.common.data import ImageBatch, ImageBatches
from isda.lab.tasks.common.isda_options import DIVERGENCE_HINT, ISDAOptions, SemanticOptions
from isda.losses import ISDALoss
from isda.losses.long_tail import ConfusionShift, LDAMMargins, LogitAdjustment, MetaLearner, Offset


@dataclass(frozen=True, kw_only=True)
class DeferredOptions:
    """Options of deferred re-weighting (Cao et al., NeurIPS 2019): class weights that apply late in the run."""

    drw: bool = False
    """Weight classes by one over their effective number of images in the last part of the run."""
    drw_start: float = 0.8
    """Share of the run before it starts."""
    beta: float = 0.9999
    """Of the effective numbers (1 - beta^n) / (1 - beta)."""


class LongTailMethod(CombinableMethod):
    """One term: the mean of w_y times the loss of a sample; the weights w have mean 1 over the training images.

    torch's weighted mean would depend on how a batch is divided among processes.
    """

    Options: ClassVar[type] = DeferredOptions
    criterion: ISDALoss
    step: Tensor
    weights: Tensor

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        head = network.classifier
        counts = counts_for(config, len(head.weight))
        like_head: dict[str, Any] = {"device": head.weight.device, "dtype": head.weight.dtype}
        start = self.weighted_from(options)
        self.start = None if start is None else round(start * config.total_steps)
        settings: dict[str, Any] = {"offset": self.offset(options, counts), "reduction": "none"}
        if self.start is not None:
            settings["class_weight"] = torch.ones(len(counts), **like_head)
        self.criterion = self.base_criterion(options, network, config, **settings, **like_head)
        # The step is counted, and the weights are chosen, on the device: no transfer to the host.
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=head.weight.device))
        self.register_buffer("weights", _per_image(options, counts).to(**like_head), persistent=False)

    def offset(self, options: Any, counts: list[int]) -> Offset | None:
        """The offset of the margins, if any."""
        return None

    def weighted_from(self, options: Any) -> float | None:
        """The share of the run before classes are weighted; None for never."""
        if not 0 <= options.drw_start <= 1:
            raise ValueError(f"drw_start must lie in 0..1, got {options.drw_start}")
        return options.drw_start if options.drw else None

    def base_criterion(self, options: Any, network: Network, config: ClassificationConfig, **settings: Any) -> ISDALoss:
        """The criterion at strength 0: it needs no features, and is not attached."""
        num_classes, feature_dim = network.classifier.weight.shape
        return ISDALoss(num_classes, feature_dim, 0.0, covariance="identity", **settings)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The weighted mean of the criterion."""
        if self.start is not None:
            class_weight = expect_type(self.criterion.class_weight, Tensor)
            class_weight.copy_(torch.where(self.step >= self.start, self.weights, 1))
        loss: Tensor = self.criterion(logits, targets).mean()
        self.step.add_(1)
        return loss


def _per_image(options: Any, counts: list[int]) -> Tensor:
    """(C,) weights of the classes with mean 1 over the training images, so that steps keep their size."""
    weights = class_balanced_weights(counts, options.beta)
    sizes = class_counts(counts)
    return weights * (sizes.sum() / (sizes * weights).sum())


@dataclass(frozen=True, kw_only=True)
class LogitAdjustmentOptions(DeferredOptions):
    """What may follow ``logit-adjustment:``."""

    tau: float = 1.0
    """Factor on the logarithms of the classes' shares."""


class LogitAdjustmentMethod(LongTailMethod):
    """`isda.losses.long_tail.LogitAdjustment` on the shares of the training images."""

    name = "logit-adjustment"
    Options = LogitAdjustmentOptions
    grid = {"tau": (0.5, 1.0, 1.5, 2.0)}  # noqa: RUF012, a class variable of the base

    def offset(self, options: LogitAdjustmentOptions, counts: list[int]) -> Offset:
        """o_yj = tau (log pi_j - log pi_y)."""
        return LogitAdjustment(counts, options.tau)


@dataclass(frozen=True, kw_only=True)
class LDAMOptions(DeferredOptions):
    """What may follow ``ldam:``."""

    max_margin: float = 0.5
    """Margin of the smallest class."""
    s: float = 1.0
    """Factor on all margins; 30 in the publication, whose logits are 30 times cosines."""


class LDAM(LongTailMethod):
    """`isda.losses.long_tail.LDAMMargins` of the training images' counts."""

    name = "ldam"
    Options = LDAMOptions
    grid = {"s": (1.0, 2.0, 4.0, 8.0)}  # noqa: RUF012, a class variable of the base

    def offset(self, options: LDAMOptions, counts: list[int]) -> Offset:
        """-s Delta_y on the own class."""
        return LDAMMargins(counts, options.max_margin, options.s)


@dataclass(frozen=True, kw_only=True)
class ClassBalancedOptions:
    """What may follow ``class-balanced:``."""

    beta: float = 0.9999
    """Of the effective numbers (1 - beta^n) / (1 - beta)."""


class ClassBalanced(LongTailMethod):
    """`isda.functional.class_balanced_weights`, from the first step on."""

    name = "class-balanced"
    Options = ClassBalancedOptions
    grid = {"beta": (0.9, 0.99, 0.999, 0.9999)}  # noqa: RUF012, a class variable of the base

    def weighted_from(self, options: ClassBalancedOptions) -> float:
        """The start."""
        return 0.0


_OF_CRITERION = ("lambda_0", "total_steps", "schedule", "bound", "tilt_steps", "max_ratio", "label_smoothing")


class DerivedCovarianceMethod(LongTailMethod):
    """A method whose covariance model is built on the one that the options name."""

    families = ("isda",)
    divergence_hint = DIVERGENCE_HINT

    @abstractmethod
    def wrapped(self, base: CovarianceModel, options: Any) -> CovarianceModel:
        """The covariance model of the criterion, built on the estimated one."""

    def base_criterion(self, options: Any, network: Network, config: ClassificationConfig, **settings: Any) -> ISDALoss:
        """Attached to the network's classifier; the strength grows over the whole run."""
        head = network.classifier
        arguments = options.criterion_settings(head, config.total_steps)
        base = arguments.pop("covariance")
        if isinstance(base, str):
            own = {name: arguments.pop(name) for name in list(arguments) if name not in _OF_CRITERION}
            dtype = torch.promote_types(head.weight.dtype, torch.float32)
            num_classes, feature_dim = head.weight.shape
            base = create(base, num_classes, feature_dim, device=head.weight.device, dtype=dtype, **own)
        model = self.wrapped(base, options)
        return ISDALoss.attach(network, classifier=head, covariance=model, **(arguments | settings))

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}


@dataclass(frozen=True, kw_only=True)
class RISDAOptions(DeferredOptions, ISDAOptions):
    """What may follow ``risda:``, besides the options of ``isda:``."""

    drw: bool = True
    """Weight classes by one over their effective number of images in the last part of the run."""
    alpha: float = 0.5
    """Shift of a class's mean towards those of the classes it is confused with, at full strength."""
    memory: float = 0.9
    """Decay of the confusions of a class with each batch."""


class RISDA(DerivedCovarianceMethod):
    """`isda.covariance.ConfusionCovariance` and `isda.losses.long_tail.ConfusionShift`."""

    name = "risda"
    Options = RISDAOptions

    def wrapped(self, base: CovarianceModel, options: RISDAOptions) -> CovarianceModel:
        """Covariances mixed by the confusions."""
        return ConfusionCovariance(base, memory=options.memory)

    def base_criterion(self, options: Any, network: Network, config: ClassificationConfig, **settings: Any) -> ISDALoss:
        """ISDA's bound with shifted means."""
        return super().base_criterion(options, network, config, shift=ConfusionShift(options.alpha), **settings)


_PURPOSE = mix(*b"balanced")


class BalancedBatches:
    """Class-balanced batches, a function of (seed, step); classes without training images are skipped.

    Args:
        source: the training batches of the run.
        size: images of a batch over all processes together, rounded up to a multiple of the classes.
    """

    def __init__(self, source: ImageBatches, size: int) -> None:
        self.source = source
        indices = source.available(0)
        labels = source.labels.cpu()[indices]
        counts = labels.bincount()
        present = counts.nonzero().flatten()
        self._sizes = counts[present]
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._by_class = indices[labels.argsort(stable=True)]
        self._per_class = -(-size // len(present))

    def indices(self, step: int) -> Tensor:
        """(classes * per class,) positions in the data set of the batch of a step, all processes together."""
        source = generator(self.source.seed, _PURPOSE, step)
        draws = torch.rand(len(self._sizes), self._per_class, generator=source, dtype=torch.float64)
        positions = self._starts.unsqueeze(1) + (draws * self._sizes.unsqueeze(1)).long()
        return self._by_class[positions.flatten()]

    def batch(self, step: int, epoch: int) -> ImageBatch:
        """This process's part of the batch of a step, augmented as in an epoch."""
        return self.source.samples(self.indices(step).tensor_split(self.source.world)[self.source.rank], epoch)


_Pass = TypeVar("_Pass")


@dataclass(frozen=True, kw_only=True)
class MetaSAugOptions(DeferredOptions, SemanticOptions):
    """What may follow ``metasaug:``, besides the options of ``isda:`` except the bound, which is the published one."""

    drw: bool = True
    """Weight classes by one over their effective number of images in the last part of the run."""
    meta_lr: float = 0.003
    """Learning rate of the covariances' scales."""


class MetaSAug(DerivedCovarianceMethod):
    """`isda.covariance.ScaledCovariance`, trained by `isda.losses.long_tail.MetaLearner` before each step.

    The balanced batches are drawn from the training images themselves, so that no method has more labels than another;
    the publication has ten further images of each class.
    """

    name = "metasaug"
    Options = MetaSAugOptions

    def __init__(self, options: MetaSAugOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        self.learner = MetaLearner(self.criterion, options.meta_lr)
        self.config = config
        self.balanced: BalancedBatches | None = None
        self._batch: ImageBatch | None = None
        self._done: int | None = None

    def wrapped(self, base: CovarianceModel, options: MetaSAugOptions) -> CovarianceModel:
        """Covariances with trained scales."""
        return ScaledCovariance(base)

    def feed(self, source: ImageBatches) -> None:
        """Draw balanced batches of the same size from the same images."""
        self.balanced = BalancedBatches(source, self.config.batch_size)

    def prepare(self, batch: ImageBatch) -> ImageBatch:
        """Keep the batch for the step of the covariances."""
        self._batch = batch
        return batch

    def differentiate(
        self, make_pass: Callable[[], _Pass], network: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> _Pass:
        """The covariances' step, then the network's."""
        # Read once after a resume; then counted on the host.
        done = int(self.step) if self._done is None else self._done
        config, batch = self.config, expect_type(self._batch, ImageBatch)
        other = (
            expect_type(self.balanced, BalancedBatches)
            .batch(done, done // config.steps_per_epoch)
            .to(config.dtype, config.channels_last)
        )
        self.learner.step(network, _pair(batch), _pair(other), rate=learning_rate(config, done))
        self._done, self._batch = done + 1, None
        return make_pass()

    def _load_from_state_dict(self, *args: Any, **settings: Any) -> None:
        super()._load_from_state_dict(*args, **settings)
        self._done = None


def _pair(batch: ImageBatch) -> tuple[Tensor, Tensor]:
    return batch.images, batch.targets
