"""fastai: a callback that trains a Learner with ISDA."""

from __future__ import annotations

from typing import Any

from fastai.callback.core import Callback
from fastai.learner import ValueMetric
from torch import Tensor, nn

from isda.bce import ISDABCELoss
from isda.criterion import AugmentedLoss
from isda.integrations.common import attached, measures
from isda.loss import ISDALoss


class ISDACallback(Callback):
    """Trains a Learner with ISDALoss in the place of its CrossEntropyLossFlat, with the settings of that.

    A BCEWithLogitsLossFlat becomes an ISDABCELoss. Validation, predictions and ``learn.lr_find()`` use the learner's
    own loss function. Statistics go on from fit to fit, the strength grows from 0 in each. The strength and the mean
    variance of the margins are columns of the learner's recorder. The callback is ``learn.isda``; ``learn.save`` saves
    no callbacks, so save ``learn.isda.state_dict()`` beside it.

    Args:
        lambda_0: strength at the end of a fit.
        total_steps: T; by default the training batches of the fit.
        classifier: the last layer of the model or its name, where it is not found.
        **settings: of the criterion: covariance, bound, ...

    Attributes:
        criterion: of the latest fit; None before the first.

    Example:
        >>> import torch
        >>> from fastai.callback.schedule import Learner
        >>> from fastai.data.core import DataLoaders
        >>> from fastai.losses import CrossEntropyLossFlat
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), batch_size=4)
        >>> learn = Learner(DataLoaders(data, data), nn.Linear(4, 3), CrossEntropyLossFlat(), cbs=ISDACallback(0.5))
        >>> with learn.no_bar(), learn.no_logging():
        ...     learn.fit(2)
        >>> learn.isda.criterion.covariance.count, learn.isda.criterion.strength
        (tensor([8, 8, 8]), 0.5)
    """

    order, run_valid = -1, False  # before MixUp, which mixes the loss function that it finds

    def __init__(
        self,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        classifier: nn.Module | str | None = None,
        **settings: Any,
    ) -> None:
        self.lambda_0, self.total_steps = lambda_0, total_steps
        self.settings = {"classifier": classifier, **settings}
        self.criterion: AugmentedLoss | None = None
        self.statistics: dict[str, Any] = {}
        self.replaced: Any = None
        self.columns = [ValueMetric(self.strength, "isda_strength"), ValueMetric(self.variance, "isda_margin_variance")]

    def before_fit(self) -> None:
        """Add the columns; a search for a learning rate is left alone."""
        self.restore()
        self.run = not hasattr(self.learn, "lr_finder")
        if self.run:
            self.learn.metrics = [*self.learn.metrics, *self.columns]

    def before_train(self) -> None:
        """Attach when the first epoch of a fit begins."""
        if self.replaced is not None:
            return
        learn, batches = self.learn, len(self.learn.dls.train)
        kind, settings = counterpart(learn.loss_func)
        total_steps = self.total_steps or learn.n_epoch * batches
        settings |= self.settings
        self.criterion = attached(kind, learn.model, self.lambda_0, total_steps, settings, self.statistics)
        self.criterion.set_step(learn.epoch * batches)  # start_epoch
        self.replaced = learn.loss_func
        learn.loss_func = LearnerLoss(self.criterion, learn)

    def before_validate(self) -> None:
        """Outside of a fit there are no columns."""
        if self.replaced is None:
            self.restore()

    def after_fit(self) -> None:
        """Restore the loss function."""
        self.restore()

    def restore(self) -> None:
        """Leave the learner as it was; the statistics stay with the callback."""
        self.learn.metrics = [metric for metric in self.learn.metrics if metric not in self.columns]
        if self.replaced is not None and self.criterion is not None:
            self.learn.loss_func, self.replaced = self.replaced, None
            self.criterion.detach()
            self.statistics = self.criterion.state_dict()

    def strength(self) -> float | None:
        """Lambda, for the recorder."""
        return None if self.criterion is None else self.criterion.strength

    def variance(self) -> float | None:
        """The mean variance of the margins, for the recorder."""
        values = {} if self.criterion is None else measures(self.criterion)
        return float(values["isda_margin_variance"]) if "isda_margin_variance" in values else None

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step."""
        return self.statistics if self.replaced is None or self.criterion is None else self.criterion.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use these statistics in the next fit."""
        self.statistics = state_dict


class LearnerLoss:
    """The criterion as a learner calls its loss function; the learner's own in validation, and for other attributes."""

    def __init__(self, criterion: AugmentedLoss, learn: Any) -> None:
        self.criterion, self.learn, self.plain = criterion, learn, learn.loss_func

    def __call__(self, pred: Tensor, targ: Tensor, **settings: Any) -> Tensor:
        """The loss of a batch, whose tensors may be of fastai's types."""
        if not self.learn.training:
            loss: Tensor = self.plain(pred, targ, **settings)
            return loss
        self.criterion.reduction = self.plain.reduction
        return self.criterion(pred.as_subclass(Tensor), targ.as_subclass(Tensor))

    @property
    def reduction(self) -> Any:
        """That of the learner's own, which MixUp changes."""
        return self.plain.reduction

    @reduction.setter
    def reduction(self, value: str) -> None:
        self.plain.reduction = value

    def __getattr__(self, name: str) -> Any:
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)


def counterpart(loss_func: Any) -> tuple[type[AugmentedLoss], dict[str, Any]]:
    """The criterion that replaces a loss function, and the settings that it takes over."""
    plain = getattr(loss_func, "func", loss_func)
    settings = {"class_weight": getattr(plain, "weight", None)}
    if type(plain) is nn.CrossEntropyLoss:
        return ISDALoss, settings | {"label_smoothing": plain.label_smoothing, "ignore_index": plain.ignore_index}
    if type(plain) is nn.BCEWithLogitsLoss:
        return ISDABCELoss, settings | {"pos_weight": plain.pos_weight}
    raise ValueError(
        f"the loss function must be a CrossEntropyLossFlat or a BCEWithLogitsLossFlat, got {type(plain).__name__}"
    )
