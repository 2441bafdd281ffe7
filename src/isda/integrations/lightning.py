"""Lightning: a callback that trains a LightningModule with ISDA and checkpoints the statistics."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from isda.bce import ISDABCELoss
from isda.criterion import AugmentedLoss
from isda.integrations.common import attached, measures
from isda.loss import ISDALoss

# One library under two names: the older one if the script has imported it.
library: Any = import_module("pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch")


class ISDACallback(library.Callback):
    """Trains a module with ISDALoss where its ``training_step`` calls F.cross_entropy or an nn.CrossEntropyLoss.

    The module is not changed, and its validation is plain cross-entropy. Class weights, ``ignore_index``, reduction and
    label smoothing are those of the call. A cross-entropy over another number of classes stays as it is. A module with
    several over as many classes makes its criterion itself: ``self.criterion = ISDALoss.attach(self.network, ...)``.

    The strength and the mean variance of the margins are logged as "isda/strength" and "isda/margin_variance".
    Checkpoints have statistics and step in the state of this callback, so they load without isda.

    Args:
        lambda_0: strength at the end of training.
        total_steps: T; by default the training batches of the fit.
        classifier: the name of the last layer in the module, where it is not found.
        loss: ISDALoss, ExplicitLoss, or ISDABCELoss for F.binary_cross_entropy_with_logits.
        **settings: of the criterion: covariance, bound, ...

    Attributes:
        criterion: of the latest fit; None before the first.

    Example:
        >>> import torch
        >>> import lightning.pytorch as pl
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> class Classifier(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.network = torch.nn.Linear(4, 3)
        ...     def training_step(self, batch, index):
        ...         return F.cross_entropy(self.network(batch[0]), batch[1])
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> data = DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), batch_size=4)
        >>> quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        >>> isda = ISDACallback(lambda_0=0.5)
        >>> pl.Trainer(max_epochs=2, callbacks=[isda], enable_model_summary=False, **quiet).fit(Classifier(), data)
        >>> isda.criterion.covariance.count, isda.criterion.total_steps
        (tensor([8, 8, 8]), 6)
    """

    def __init__(
        self,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        classifier: str | None = None,
        loss: type[AugmentedLoss] = ISDALoss,
        **settings: Any,
    ) -> None:
        self.lambda_0, self.total_steps, self.loss = lambda_0, total_steps, loss
        self.settings = {"classifier": classifier, **settings}
        self.criterion: AugmentedLoss | None = None
        self.calls = AugmentedCalls()
        self.active = ExitStack()
        self.state: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach: now the network is complete, on its device, and the checkpoint is loaded."""
        total_steps = self.total_steps or training_batches(trainer)
        state = self.state if trainer.global_step else None
        self.criterion = attached(self.loss, pl_module, self.lambda_0, total_steps, self.settings, state)
        binary = issubclass(self.loss, ISDABCELoss)
        self.calls.function = F.binary_cross_entropy_with_logits if binary else F.cross_entropy
        self.calls.criterion, self.calls.seen = self.criterion, False

    def on_train_batch_start(self, *_: Any) -> None:
        """From here on calls are augmented."""
        self.active.close()
        self.active.enter_context(self.calls)

    def on_train_batch_end(self, *_: Any) -> None:
        """Log the strength and the variance."""
        self.active.close()
        if self.criterion is not None:
            self.log_dict(measures(self.criterion, "isda/"))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A module that computes its loss in another way is refused."""
        if not self.calls.seen and self.criterion is not None:
            raise ValueError(
                f"training_step of {type(pl_module).__name__} must call {self.calls.function.__name__} on logits of "
                f"{self.criterion.num_classes} classes for ISDACallback to have a part in it; it never did"
            )

    def on_train_end(self, *_: Any) -> None:
        """Leave the module as it was; the statistics stay with the callback."""
        self.active.close()
        if self.criterion is not None:
            self.criterion.detach()
            self.state = self.criterion.state_dict()

    on_exception = on_train_end

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step."""
        return self.state if self.criterion is None else self.criterion.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the statistics of a checkpoint."""
        self.state = state_dict


class AugmentedCalls(TorchFunctionMode):
    """Inside, the cross-entropy of logits of as many classes as the criterion has is computed by the criterion."""

    criterion: Any = None
    function: Any = None
    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, criterion = kwargs or {}, self.criterion
        if func is not self.function or args[0].shape[1:2] != (criterion.num_classes,):
            return func(*args, **kwargs)
        self.seen = True
        settings = {"class_weight" if name == "weight" else name: value for name, value in kwargs.items()}
        if settings.pop("size_average") is not None or settings.pop("reduce") is not None:
            raise ValueError("pass reduction= to the cross-entropy instead of size_average= and reduce=")
        for name, value in settings.items():
            setattr(criterion, name, value)
        try:
            return criterion(*args)
        finally:
            criterion.class_weight = None  # the weights of a call are no part of the state


def training_batches(trainer: Any) -> int:
    """The training batches of a whole fit."""
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    batches = min(epochs * trainer.num_training_batches, steps * trainer.accumulate_grad_batches)
    if not 1 <= batches < math.inf:
        raise ValueError(f"total_steps must be given where the trainer does not know its length, got {batches} batches")
    return int(batches)
