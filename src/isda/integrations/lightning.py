"""Lightning: a callback that trains a LightningModule with ISDA and checkpoints the statistics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.loss import _Loss
from torch.overrides import TorchFunctionMode

from isda._utils.checks import warn
from isda.attach.autograd_compat import outside_graphs
from isda.covariance import CovarianceModel
from isda.integrations.common import CriterionReplacement, HeldOutLogits, given, import_library, warn_of_no_strength
from isda.losses import AugmentedLoss

__all__ = ["ISDACallback"]

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# One library under two names: the older one if the script has imported it.
_NAME = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
_library: Any = import_library(_NAME, "lightning")
_Callback: Any = _library.Callback

_LOGGED = "isda/strength"
_REPLACED = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)


class ISDACallback(_Callback):
    """Replaces the cross-entropy of a module by the ISDALoss of its network during a fit.

    The module is not changed: ``self.criterion(self.network(x), y)`` gives the augmented loss in training and plain
    cross-entropy in validation, and without the callback everywhere. An nn.BCEWithLogitsLoss becomes an ISDABCELoss.
    In a module without such a criterion, ``F.cross_entropy(logits, y)`` is replaced where ``training_step`` calls it.
    The strength grows over ``trainer.estimated_stepping_batches`` and follows ``trainer.global_step``, so accumulated
    gradients count as one step; it is logged as "isda/strength". Checkpoints hold statistics and step in the state of
    this callback, never in the module's: they load without isda.

    Args:
        criterion: the name of the criterion in the module; None if it has one nn.CrossEntropyLoss or
            nn.BCEWithLogitsLoss, or calls F.cross_entropy.
        lambda_0: strength at the end of training; "auto" for one that each validation epoch of the fit sets, for which
            ``validation_step`` has to call the criterion.
        total_steps: T; None for the trainer's estimate.
        classifier: the name of the last layer in the module, if it cannot be found by convention in the module's only
            child with parameters, or else in the module itself.
        schedule: "constant" for a strength of lambda_0 from the first step on.
        covariance: see ISDALoss, as all that follow; None for the default of ``ISDALoss.attach``.
        bound: "jensen" or "tilted".
        rank: of covariance="low_rank".
        decay: how the statistics forget old features.
        tilt_steps: of bound="tilted".
        max_ratio: upper limit of the variance term.
        validate: whether labels and features are checked.
        **settings: others of ISDALoss; class weights, ignore_index, reduction and label smoothing are the criterion's.

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
        lambda_0: float | str = 0.5,
        total_steps: int | None = None,
        classifier: str | None = None,
        schedule: str | None = None,
        covariance: str | CovarianceModel | None = None,
        bound: str | None = None,
        rank: int | None = None,
        decay: float | None = None,
        tilt_steps: int | None = None,
        max_ratio: float | None = None,
        validate: bool | None = None,
        **settings: Any,
    ) -> None:
        settings |= given(
            covariance=covariance,
            bound=bound,
            rank=rank,
            decay=decay,
            tilt_steps=tilt_steps,
            max_ratio=max_ratio,
            validate=validate,
        )
        self._name = criterion
        self._replacement = CriterionReplacement(lambda_0, total_steps, classifier, schedule, settings)
        self._forward: _CriterionForward | None = None
        self._steps: list[_Step] = []
        self._checked = False

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
        plain, replacement = self._find_criterion(pl_module), self._replacement
        network, classifier = _network_of(pl_module, replacement.classifier)
        if replacement.automatic:
            _check_evaluation(trainer, pl_module, network)
        steps: float = trainer.estimated_stepping_batches if replacement.needs_steps else 1
        if not 1 <= steps < float("inf"):
            raise ValueError(f"total_steps must be given if the trainer does not know how long it trains, got {steps}")
        criterion = replacement.begin(plain, network, int(steps), classifier)
        criterion.set_step(trainer.global_step)
        self._forward = _CriterionForward(plain, criterion, trainer)
        if plain in pl_module.modules():
            plain.forward = self._forward
        else:
            self._steps = [_Step(pl_module, name, self._forward) for name in ("training_step", "validation_step")]
        self._checked = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log the strength of the batch, and set the step of the optimiser."""
        if self.criterion is not None:
            if not trainer.barebones:
                pl_module.log(self._logged_name(trainer), self.criterion.strength, on_step=True, on_epoch=False)
            self.criterion.set_step(trainer.global_step)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the strength of lambda_0="auto"."""
        forward = self._forward
        if forward is not None and forward.held_out is not None and forward.called:
            forward.held_out.match()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn after the first epoch if the module's criterion was never called, or at a strength of 0."""
        forward = self._forward
        if forward is None or self._checked:
            return
        self._checked = True
        if forward.called:
            planned = float(trainer.estimated_stepping_batches)
            warn_of_no_strength(forward.criterion, _EVALUATE, planned if planned >= 1 else float("inf"))
            return
        called, call = f"its {type(forward.plain).__name__}", "self.criterion"
        if self._steps:
            called = call = "F.cross_entropy"
        warn(
            f"{type(pl_module).__name__} never called {called} in the first epoch, so ISDA had no part "
            f"in its training; call it in training_step, as {call}(logits, targets), or name the "
            "criterion that is called as ISDACallback(criterion=...)"
        )

    def teardown(self, *_: Any, **__: Any) -> None:
        """Restore the module's criterion; the statistics stay with the callback."""
        for step in self._steps:
            step.restore()
        if self._forward is not None and not self._steps:
            del self._forward.plain.forward
        self._forward, self._steps = None, []
        self._replacement.end()

    on_exception = teardown

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step."""
        return self._replacement.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the statistics of a checkpoint."""
        self._replacement.load_state_dict(state_dict)

    def _logged_name(self, trainer: Trainer) -> str:
        """The name in the logs; two criteria of one module have two."""
        several = sum(isinstance(callback, ISDACallback) for callback in trainer.callbacks) > 1
        return f"{_LOGGED}/{self._name}" if several else _LOGGED

    def _find_criterion(self, module: LightningModule) -> nn.Module:
        """The module's own, or a new one that stands for its calls of F.cross_entropy."""
        criteria = {name: part for name, part in module.named_modules() if isinstance(part, _REPLACED)}
        if self._name in criteria or (self._name is None and len(criteria) == 1):
            return criteria[self._name] if self._name is not None else next(iter(criteria.values()))
        losses = [part for part in module.modules() if isinstance(part, _Loss)]
        if self._name is None and not losses:
            return nn.CrossEntropyLoss()
        has = ", ".join(map(repr, criteria)) or "none"
        raise ValueError(
            f"criterion must name an nn.CrossEntropyLoss or nn.BCEWithLogitsLoss of {type(module).__name__}, got "
            f"{self._name!r}; it has {has}"
        )


_EVALUATE = "call self.criterion(logits, targets) in validation_step, and validate at least once per epoch"


class _CriterionForward:
    """The forward of a criterion that is replaced in training; in validation it also collects the held-out logits."""

    def __init__(self, plain: nn.Module, criterion: AugmentedLoss, trainer: Trainer) -> None:
        self.plain, self.criterion, self.trainer = plain, criterion, trainer
        self.called, self.held_out = False, HeldOutLogits.of(criterion)

    @outside_graphs
    def __call__(self, input: Tensor, target: Tensor) -> Tensor:
        if self.trainer.training:
            self.called = True
            return self.criterion(input, target)
        if self.held_out is not None and self.trainer.validating:
            self.held_out.add(input, target)
        return type(self.plain).forward(self.plain, input, target)

    def __reduce__(self) -> Any:
        """A copy of the module during a fit gets the plain criterion."""
        return (getattr, (self.plain, "forward"))


class _Step:
    """A step of a module in which F.cross_entropy is the criterion."""

    def __init__(self, module: LightningModule, name: str, forward: _CriterionForward) -> None:
        self.module, self.name, self.forward = module, name, forward
        self.own = self.__wrapped__ = getattr(module, name)  # Lightning looks at the wrapped method
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _CrossEntropyCalls(self.forward):
            return self.own(*args, **kwargs)

    def restore(self) -> None:
        """Take it away: the method of the class is found again."""
        delattr(self.module, self.name)

    def __reduce__(self) -> Any:
        """A copy of the module during a fit gets the plain step."""
        return (getattr, (self.module, self.name))


class _CrossEntropyCalls(TorchFunctionMode):
    """F.cross_entropy(logits, targets) is the criterion's."""

    def __init__(self, forward: _CriterionForward) -> None:
        super().__init__()
        self.forward = forward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.cross_entropy:
            return func(*args, **kwargs)
        settings = {name: value for name, value in kwargs.items() if name not in ("input", "target")}
        default = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean"}
        changed = [name for name, value in settings.items() if value is not None and value != default.get(name, 0.0)]
        if changed or len(args) > 2:
            raise ValueError(
                "ISDACallback replaces F.cross_entropy(logits, targets) without further arguments, got "
                f"{', '.join(changed) or 'others by position'}: define self.criterion = nn.CrossEntropyLoss(...) with "
                "them in __init__, and call it in training_step"
            )
        named = dict(zip(("input", "target"), args, strict=False)) | kwargs
        return self.forward(named["input"], named["target"])


def _check_evaluation(trainer: Trainer, module: LightningModule, network: nn.Module) -> None:
    """Raise ValueError for a fit in which lambda_0="auto" cannot be matched."""
    if not trainer.enable_validation:
        raise ValueError(
            "lambda_0='auto' needs an evaluation: pass val_dataloaders to trainer.fit and define validation_step"
        )
    if network is module and type(module).forward is _library.LightningModule.forward:
        raise ValueError(
            "lambda_0='auto' runs the network again on training inputs: put all layers into one child of "
            f"{type(module).__name__}, or define a forward that training_step calls as self(x)"
        )


def _network_of(module: LightningModule, classifier: Any) -> tuple[nn.Module, str | None]:
    """The only child of the module with parameters, or the module; and the name of the classifier in it."""
    parts = {name: part for name, part in module.named_children() if next(part.parameters(), None) is not None}
    if len(parts) > 1 or not parts:
        return module, classifier
    ((name, part),) = parts.items()
    if classifier is None or classifier.startswith(f"{name}."):
        return part, classifier and classifier.removeprefix(f"{name}.")
    return module, classifier
