"""MetaSAug (Li et al., CVPR 2021) as a method: covariances corrected by the loss on balanced batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from isda.classification.balanced import BalancedBatches
from isda.classification.batches import Batch, Batches
from isda.classification.config import Config
from isda.classification.methods.borrowed import BorrowedCovarianceMethod
from isda.classification.methods.long_tail import DeferredOptions
from isda.classification.methods.semantic_options import SemanticOptions
from isda.covariance import CovarianceModel, ScaledCovariance
from isda.engine.recipe import learning_rate
from isda.errors import of_type
from isda.losses.long_tail import MetaLearner
from isda.networks import Network

__all__ = ["MetaSAug", "MetaSAugOptions"]

_Pass = TypeVar("_Pass")


@dataclass(frozen=True, kw_only=True)
class MetaSAugOptions(DeferredOptions, SemanticOptions):
    """What may follow ``metasaug:``, beside the options of ``isda:`` but for its bound, which is the published one."""

    drw: bool = True
    """Weigh classes by one over their effective number of images in the last part of the run."""
    meta_lr: float = 0.003
    """Learning rate of the covariances' scales."""


class MetaSAug(BorrowedCovarianceMethod):
    """`isda.covariance.ScaledCovariance`, trained by `isda.losses.long_tail.MetaLearner` before each step.

    The balanced batches are drawn from the training images themselves, so that no method sees more labels than another;
    the publication has ten further images of each class.
    """

    name = "metasaug"
    Options = MetaSAugOptions

    def __init__(self, options: MetaSAugOptions, network: Network, config: Config) -> None:
        super().__init__(options, network, config)
        self.learner = MetaLearner(self.criterion, options.meta_lr)
        self.config = config
        self.balanced: BalancedBatches | None = None
        self._batch: Batch | None = None
        self._done: int | None = None

    def wrapped(self, base: CovarianceModel, options: MetaSAugOptions) -> CovarianceModel:
        """With trained scales."""
        return ScaledCovariance(base)

    def feed(self, source: Batches) -> None:
        """Balanced batches come from the same images, as many images each as those of a step."""
        self.balanced = BalancedBatches(source, self.config.batch_size)

    def prepare(self, batch: Batch) -> Batch:
        """Keep the batch for the step of the covariances."""
        self._batch = batch
        return batch

    def differentiate(
        self, make_pass: Callable[[], _Pass], network: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> _Pass:
        """The covariances' step, then the network's."""
        # Read once after a run is taken up; then the host counts along.
        done = int(self.step) if self._done is None else self._done
        config, batch, balanced = self.config, of_type(self._batch, Batch), of_type(self.balanced, BalancedBatches)
        other = balanced.batch(done, done // config.steps_per_epoch).to(config.dtype, config.channels_last)
        self.learner.step(network, _pair(batch), _pair(other), rate=learning_rate(config, done))
        self._done, self._batch = done + 1, None
        return make_pass()

    def _load_from_state_dict(self, *args: Any, **settings: Any) -> None:
        super()._load_from_state_dict(*args, **settings)
        self._done = None


def _pair(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.images, batch.targets
