"""Lightning: a callback that trains a LightningModule with ISDA and checkpoints the statistics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from isda._utils.checks import warn
from isda.attach.autograd_compat import outside_graphs
from isda.integrations.common import CriterionReplacement, import_library
from isda.losses import AugmentedLoss

__all__ = ["ISDACallback"]

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# One library under two names: the older one if the script has imported it.
_NAME = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
_Callback: Any = import_library(_NAME, "lightning").Callback

_REPLACED = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)


class ISDACallback(_Callback):
    """Replaces the nn.CrossEntropyLoss of a module by the ISDALoss of its network during a fit.

    The module is not changed: ``self.criterion(self.network(x), y)`` gives the augmented loss in training and plain
    cross-entropy in validation, and without the callback everywhere. An nn.BCEWithLogitsLoss becomes an ISDABCELoss.
    The strength grows over ``trainer.estimated_stepping_batches`` and follows ``trainer.global_step``, so accumulated
    gradients count as one step. Checkpoints hold statistics and step in the state of this callback, never in the
    module's: they load without isda.

    Args:
        criterion: the name of the criterion in the module; None if it has one nn.CrossEntropyLoss or
            nn.BCEWithLogitsLoss.
        lambda_0: strength at the end of training.
        total_steps: T; None for the trainer's estimate.
        classifier: the name of the last layer in the module, if it cannot be found by convention in the module's only
            child with parameters, or else in the module itself.
        **settings: for ISDALoss; class weights, ignore_index, reduction and label smoothing are the criterion's.

    Attributes:
        criterion: the ISDALoss of the last fit; None before the first.

    Example:
        >>> import lightning.pytorch as pl
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> import torch
        >>> class Classifier(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.network, self.criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
        ...     def training_step(self, batch, index):
        ...         return self.criterion(self.network(batch[0]), batch[1])
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
        criterion: str | None = None,
        *,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        classifier: str | None = None,
        **settings: Any,
    ) -> None:
        self._name, self._replacement = criterion, CriterionReplacement(lambda_0, total_steps, classifier, settings)
        self._replaced: nn.Module | None = None
        self._forward: _CriterionForward | None = None

    @property
    def criterion(self) -> AugmentedLoss | None:
        """The criterion of the last fit, with its statistics; None before the first."""
        return self._replacement.criterion

    @property
    def state_key(self) -> str:
        """The key of the state in a checkpoint; two criteria of one module have two callbacks."""
        return self._generate_state_key(criterion=self._name)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach.

        Not earlier: now the network is complete (``LightningModule.setup``, ``configure_model``) and on its device, the
        checkpoint is loaded, and searches of learning rates and batch sizes, which train without callbacks, are over.
        """
        plain = self._find_criterion(pl_module)
        network = pl_module if self._replacement.classifier is not None else _network_of(pl_module)
        steps: float = self._replacement.total_steps or trainer.estimated_stepping_batches
        if not 1 <= steps < float("inf"):
            raise ValueError(f"total_steps must be given if the trainer does not know how long it trains, got {steps}")
        criterion = self._replacement.begin(plain, network, int(steps))
        criterion.set_step(trainer.global_step)
        plain.forward = self._forward = _CriterionForward(plain, criterion, trainer)
        self._replaced = plain

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Set the step of the optimiser."""
        if self.criterion is not None:
            self.criterion.set_step(trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn after the first epoch if the module's criterion was never called."""
        if self._forward is not None and not self._forward.called:
            kind = type(self._forward.plain).__name__
            warn(
                f"{type(pl_module).__name__} never called its {kind} in the first epoch, so ISDA had no part in its "
                "training; call it in training_step, as self.criterion(logits, targets), or name the criterion that is "
                "called as ISDACallback(criterion=...)"
            )
        self._forward = None

    def teardown(self, *_: Any, **__: Any) -> None:
        """Restore the module's criterion; the statistics stay with the callback."""
        if self._replaced is not None:
            del self._replaced.forward
            self._replaced = self._forward = None
        self._replacement.end()

    on_exception = teardown

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step."""
        return self._replacement.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the statistics of a checkpoint."""
        self._replacement.load_state_dict(state_dict)

    def _find_criterion(self, module: LightningModule) -> nn.Module:
        criteria = {name: part for name, part in module.named_modules() if isinstance(part, _REPLACED)}
        if self._name in criteria or (self._name is None and len(criteria) == 1):
            return criteria[self._name] if self._name is not None else next(iter(criteria.values()))
        has = ", ".join(map(repr, criteria)) or "none"
        raise ValueError(
            f"criterion must name an nn.CrossEntropyLoss or nn.BCEWithLogitsLoss of {type(module).__name__}, got "
            f"{self._name!r}; it has {has}"
        )


class _CriterionForward:
    """The forward of a criterion that is replaced in training."""

    def __init__(self, plain: nn.Module, criterion: AugmentedLoss, trainer: Trainer) -> None:
        self.plain, self.criterion, self.trainer = plain, criterion, trainer
        self.called = False

    @outside_graphs
    def __call__(self, input: Tensor, target: Tensor) -> Tensor:
        if self.trainer.training:
            self.called = True
            return self.criterion(input, target)
        return type(self.plain).forward(self.plain, input, target)

    def __reduce__(self) -> Any:
        """A copy of the module during a fit gets the plain criterion."""
        return (getattr, (self.plain, "forward"))


def _network_of(module: LightningModule) -> nn.Module:
    """The only child of the module with parameters, or the module."""
    parts = [part for part in module.children() if next(part.parameters(), None) is not None]
    return parts[0] if len(parts) == 1 else module
