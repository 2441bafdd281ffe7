"""Base class of the losses over augmented features: attaching to a model, the strength schedule, and one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.choices import check_choice
from isda._utils.devices import in_graph, on_host, outside_autocast
from isda.attach import RecordedFeatures, Recorder, find_classifiers, in_backward, record_inputs, sizes_of
from isda.attach.autograd_compat import outside_graphs, refuse_transforms
from isda.attach.find import unwrap
from isda.covariance import CovarianceModel
from isda.covariance.memory import AUTO
from isda.functional.grouping import Groups, group_rows
from isda.functional.patches import Patches
from isda.losses.inputs import (
    LossInputs,
    check_logits,
    check_not_sharded,
    make_covariance,
    plain_weight,
    refuse_sizes,
)
from isda.losses.matching import KEPT_SAMPLES, AutomaticStrength, TrainingSamples
from isda.losses.monitors import EpochMonitor, EvalModeMonitor, RepeatMonitor
from isda.losses.recorded import is_recordable, recorded_loss, recorded_strength, recorded_weight
from isda.losses.schedule import StrengthSchedule, batches_of, strength_dtype
from isda.losses.targets import (
    REDUCTIONS,
    as_rows,
    classes_second,
    has_classes_last,
    logits_of,
    resize_logits,
    widen,
)

_Criterion = TypeVar("_Criterion", bound="AugmentedLoss")


class CallState(NamedTuple):
    """What a call in training mode does to the state of its criterion.

    Attributes:
        updates: whether the statistics learn from the features. A recomputation under activation checkpointing, a
            second call on one forward pass and a call inside ``held`` change nothing.
        scheduled: whether the strength is the schedule's, which then advances with an update.
        strength: lambda.
        record: the forward pass whose features are used; None for features passed by the caller.
    """

    updates: bool
    scheduled: bool
    strength: float
    record: RecordedFeatures | None = None


class AugmentedLoss(nn.Module, ABC):
    """An expected loss over features a~ ~ N(a, lambda Sigma), which a subclass bounds or estimates.

    In training mode a call updates the covariances with the features, evaluates the loss at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is the plain loss to the bit. The
    arguments are those of ISDALoss.
    """

    class_weight: Tensor | None
    _pooled: ClassVar[bool] = False
    """Whether one covariance serves all classes."""
    align_corners = False
    """How logits are resized (F.interpolate)."""
    _recorder: Recorder | None = None
    _last_strength: float | None = 0.0
    """Of the last call that has updated the statistics; None if a graph has it, in ``last_strength``."""
    last_strength: Tensor
    _held = False
    _samples: TrainingSamples | None = None
    _supports_matching: ClassVar[bool] = False
    """Whether lambda_0 may be "auto"."""

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float | str = 0.5,
        total_steps: int | None = None,
        *,
        schedule: str = "linear",
        covariance: str | CovarianceModel = AUTO,
        reduction: str = "mean",
        class_weight: Tensor | None = None,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.schedule = self._make_schedule(lambda_0, total_steps, schedule, device)
        classes = 1 if self._pooled else num_classes
        self.covariance = make_covariance(
            covariance, classes, feature_dim, covariance_settings, type(self), device=device, dtype=dtype
        )
        self.covariance.validate = self.validate = validate
        self.num_classes, self.feature_dim = int(num_classes), self.covariance.feature_dim
        self.register_buffer("class_weight", class_weight)
        strength = torch.zeros((), dtype=strength_dtype(device), device=device)
        self.register_buffer("last_strength", strength, persistent=False)
        self._repeats, self._eval_mode, self._epochs = RepeatMonitor(), EvalModeMonitor(), EpochMonitor()

    def _make_schedule(
        self, lambda_0: float | str, total_steps: int | None, kind: str, device: torch.device | str | None
    ) -> StrengthSchedule:
        if not isinstance(lambda_0, str):
            return StrengthSchedule(lambda_0, total_steps, device, kind)
        if lambda_0 != "auto":
            raise ValueError(f"lambda_0 must be a finite number >= 0 or 'auto', got {lambda_0!r}")
        if not self._supports_matching:
            raise ValueError(f"lambda_0 must be a number for {type(self).__name__}: only ISDALoss supports 'auto'")
        for name, value, default in (("total_steps", total_steps, None), ("schedule", kind, "linear")):
            if value != default:
                raise ValueError(
                    f"{name} must not be given with lambda_0='auto', whose strength criterion.match() sets, got {value}"
                )
        return AutomaticStrength(device)

    @classmethod
    def attach(
        cls: type[_Criterion],
        model: nn.Module,
        lambda_0: float | str = 0.5,
        total_steps: int | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        epochs: int | None = None,
        loader: Any = None,
        match_samples: int = KEPT_SAMPLES,
        classifier: nn.Module | str | Sequence[nn.Module | str] | None = None,
        **settings: Any,
    ) -> _Criterion:
        """Create a criterion for an existing model: find its classifier and record the inputs of the classifier.

        ``criterion(model(x), targets)`` then works like nn.CrossEntropyLoss, which it also is while the classifier is
        in eval mode: the rest of a training script, validation included, stays as it was. A criterion that was attached
        to the same classifier before is replaced; ``detach`` leaves the model as it was.

        Args:
            model: any network that ends in an nn.Linear or an nn.Conv2d, or in several that it averages or adds up,
                also wrapped or compiled.
            lambda_0: see ISDALoss.
            total_steps: see ISDALoss; or pass ``epochs`` and ``loader``.
            optimizer: its steps move the schedule, so that gradient accumulation, windows of any length and steps that
                a GradScaler skips are counted as they are made. Without one, training forwards are counted.
            epochs: of the whole training, with ``loader`` instead of ``total_steps``.
            loader: of the training batches, with a length.
            match_samples: with lambda_0="auto", how many training samples ``match`` runs through the model again, at
                least; the inputs of the latest batches are kept for it. 0 if ``match`` is always given some.
            classifier: the last layer or its name, where it cannot be found by convention; a list of those whose
                outputs are added up.
            **settings: see ISDALoss.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> loader = [(torch.randn(6, 4), torch.arange(6) % 3)] * 5
            >>> from isda import ISDALoss
            >>> criterion = ISDALoss.attach(model, lambda_0=0.5, optimizer=optimizer, epochs=2, loader=loader)
            >>> for x, y in loader:
            ...     criterion(model(x), y).backward()
            ...     optimizer.step()
            >>> criterion.step, criterion.strength
            (5, 0.25)
        """
        refuse_sizes(settings)
        checks.check_integer("match_samples", match_samples)
        if (epochs is None) != (loader is None):
            raise ValueError("epochs and loader must be given together, got one of them")
        if epochs is not None:
            if lambda_0 == "auto":
                raise ValueError(
                    "epochs and loader must not be given with lambda_0='auto', whose strength criterion.match() sets"
                )
            if total_steps is not None:
                raise ValueError(f"total_steps must not be given with epochs and loader, got {total_steps}")
            total_steps = batches_of(epochs, loader)
        heads = find_classifiers(model, classifier)
        trained = next(parameter for part in (*heads, unwrap(model)) for parameter in part.parameters())
        settings = {"device": trained.device, "dtype": trained.dtype, **settings}
        sizes = [sizes_of(head) for head in heads]
        criterion = cls(sizes[0][0], sum(size for _, size in sizes), lambda_0, total_steps, **settings)
        if optimizer is not None:
            criterion.schedule.follow(optimizer, batches=epochs is not None)
        criterion._recorder = record_inputs(*heads, model=model)
        if criterion.schedule.automatic:
            criterion._samples = TrainingSamples(model, match_samples)
        return criterion

    def detach(self) -> None:
        """Take the hook off the model, which is then as it was before ``attach``: it can be pickled without isda.

        The statistics stay, and ``criterion(logits, targets, features=..., weight=...)`` works on. Does nothing for a
        criterion that is not attached.
        """
        self.schedule.unfollow()
        if self._recorder is not None:
            self._recorder.detach()
            self._recorder = None
        if self._samples is not None:
            self._samples.remove()
            self._samples = None

    @property
    def strength(self) -> float:
        """The current lambda = lambda_0 * t / T."""
        return self.schedule.strength

    @property
    def step(self) -> int:
        """The current t."""
        return int(self.schedule.step)

    @property
    def advance_every(self) -> int:
        """Training forwards per step of the schedule: the number of gradient accumulation steps."""
        return self.schedule.advance_every

    @advance_every.setter
    def advance_every(self, value: int) -> None:
        self.schedule.advance_every = value

    @property
    def total_steps(self) -> int | None:
        """T, the number of steps over which the strength grows; None if it was not given. It can be set."""
        return self.schedule.total_steps

    @total_steps.setter
    def total_steps(self, value: int | None) -> None:
        self.schedule.total_steps = value

    def set_step(self, step: int) -> None:
        """Let the optimiser's step drive the schedule: t = ``step``, and training forwards no longer move it.

        Call it after every step of the optimiser, with the number of steps so far; it is exact for windows of gradient
        accumulation of any length. Setting ``advance_every`` makes forwards count again. The state_dict
        holds which of the two applies.

        Example:
            >>> from isda import ISDALoss
            >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
            >>> criterion.set_step(20)
            >>> criterion.strength
            0.1
        """
        self.schedule.set_step(step)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the steps of ``optimizer`` drive the schedule; ``attach(model, optimizer=...)`` does the same.

        Example:
            >>> from isda import ISDALoss
            >>> head = nn.Linear(8, 3)
            >>> criterion, optimizer = ISDALoss(3, 8, total_steps=100), torch.optim.SGD(head.parameters(), lr=0.1)
            >>> criterion.follow(optimizer)
            >>> optimizer.step()
            >>> criterion.step
            1
        """
        self.schedule.follow(optimizer)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Calls in the block use the strength of the last call before it, and change no state.

        For a second pass over a batch that has counted already, as sharpness-aware minimisation makes it.

        Example:
            >>> import torch
            >>> from isda import ISDALoss
            >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
            >>> head, features, targets = nn.Linear(8, 3), torch.randn(4, 8), torch.tensor([0, 2, 1, 2])
            >>> first = criterion(head(features), targets, features=features, weight=head.weight)
            >>> with criterion.held():
            ...     second = criterion(head(features), targets, features=features, weight=head.weight)
            >>> criterion.step, criterion.covariance.count.sum(), torch.equal(first, second)
            (1, tensor(4), True)
        """
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def train(self: _Criterion, mode: bool = True) -> _Criterion:
        """Set training or eval mode; at the end of an epoch warnings are given that no error tells."""
        super().train(mode)
        if not mode:
            self._epochs.check(self.schedule, self.covariance)
        return self

    # -- what a subclass defines -------------------------------------------------------------------------------------

    @abstractmethod
    def _check_inputs(
        self, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
    ) -> LossInputs:
        """The inputs of a call in one form, or a ValueError."""

    @abstractmethod
    def _plain_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss at strength 0, reduced."""

    @abstractmethod
    def _augmented_loss(self, inputs: LossInputs, groups: Groups, strength: Any) -> Tensor:
        """The loss at a strength above 0, reduced; called outside autocast."""

    @abstractmethod
    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """The consistency loss of unlabelled samples, section 5; needs no labels and changes no state."""

    def _loss_count(self, inputs: LossInputs) -> int:
        """How many losses the reduction "sum" adds up."""
        return len(inputs.classes)

    @property
    def _records_graphs(self) -> bool:
        """Whether a call can be part of a compiled graph."""
        return False

    @property
    def _needs_features(self) -> bool:
        """Whether a call at strength 0 may need features."""
        return self.schedule.lambda_0 != 0

    def _loss_without_features(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._plain_loss(logits, targets)

    # -- a call ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        logits: Any,
        targets: Tensor,
        *,
        features: Tensor | None = None,
        weight: Tensor | None = None,
        strength: float | None = None,
    ) -> Tensor:
        """The loss; in training mode it also learns from the features and advances the schedule.

        With an attached criterion a forward pass of the model counts once: the labels of the first call on its logits
        feed the statistics, and later calls use the same strength and change nothing. Logits without a graph that the
        classifier did not make (those of an averaged copy of the model) get plain cross-entropy.

        Args:
            logits: outputs of the classifier, or an output of the model that has them as ``logits`` or ``out``.
            targets: class indices, or distributions of the shape of the logits.
            features: inputs of the classifier; recorded by themselves after ``attach``.
            weight: weights of the classifier; likewise.
            strength: lambda for this call instead of the schedule's, which then does not move.
        """
        if in_graph() and is_recordable(self):
            return recorded_loss(self, logits, targets, features, weight, strength)
        return self._forward(logits, targets, features, weight, strength)

    @outside_graphs
    def _forward(
        self,
        logits: Any,
        targets: Tensor,
        features: Tensor | None,
        weight: Tensor | None,
        strength: float | None,
    ) -> Tensor:
        if not self.training:
            logits, targets = self._classes_second(logits_of(logits), targets)
            self._eval_mode.check(logits, None if self._recorder is None else self._recorder.trains)
            self._clear_records()
            return self._plain_loss(logits, targets)
        refuse_transforms(self)
        state = self._begin(strength)
        given = features is not None or weight is not None or self._recorder is not None
        if not given and state.strength == 0 and not self._needs_features:
            return self._loss_without_features(logits_of(logits), targets)
        with self.covariance.reporting_failure(state.updates):
            logits = logits_of(logits)
            rows, weight, state = self._features_and_weight(logits, features, weight, state)
        if rows is None or weight is None:
            return self._evaluate(*self._classes_second(logits, targets))
        with self.covariance.reporting_failure(state.updates):
            own = (logits, targets)
            if state.record is not None and state.record.has_classes_last(logits):
                own = classes_second(logits, targets)
            inputs = self._check_inputs(*own, rows, weight)
            groups = self._groups(inputs)
        if state.updates:
            if state.record is not None and state.record.joining:
                self.covariance.refuse_join()
            self._update_statistics(inputs, groups)
            if self.validate:
                self._repeats.check(targets, weight)
            if self._samples is not None:
                self._samples.add(targets)
        loss = self._loss(inputs, groups, state.strength)
        if state.updates:
            self._finish(state)
        return loss

    def _begin(self, strength: float | None) -> CallState:
        """What a call with this ``strength`` argument does; a repeated one uses the strength of the first."""
        repeated, scheduled = in_backward() or self._held, strength is None
        with self.covariance.reporting_failure(not repeated):
            if repeated and strength is None:
                strength = float(self.last_strength) if self._last_strength is None else self._last_strength
            used = self.schedule.strength_for_call(strength)
        return CallState(updates=not repeated, scheduled=scheduled, strength=used)

    def _features_and_weight(
        self, logits: Tensor, features: Tensor | None, weight: Tensor | None, state: CallState
    ) -> tuple[Tensor | Patches | None, Tensor | None, CallState]:
        """Features and weight as given or recorded. No features for a classifier in eval mode, nor for logits without a
        graph that are not the classifier's.
        """
        if features is not None:
            return features, self._weight_for(logits, weight), state
        recorder = self._require_recorder("features and weight" if weight is None else "features")
        record = recorder.find(logits, verify=self.validate)
        if record is None:
            return None, weight, state
        updates, strength, counted = state.updates, state.strength, record.strength
        if counted is not None:  # an earlier call on this pass has updated the statistics
            updates, strength = False, counted if state.scheduled else strength
        weight = record.weight if weight is None else weight
        return record.rows_for(logits), weight, CallState(updates, state.scheduled, strength, record)

    def _finish(self, state: CallState) -> None:
        """Remember the strength of a call that has updated the statistics, and advance the schedule."""
        self._last_strength = state.strength
        self._eval_mode.reset()
        if state.record is not None:
            state.record.strength = state.strength
        if state.scheduled:
            self.schedule.advance()
            self._epochs.count_call()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        checks.check_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with class weights that the constructor refuses, before any of it is loaded."""
        for name in self._buffers:
            checks.check_entry(prefix + name, state.get(prefix + name), 0)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _groups(self, inputs: LossInputs) -> Groups:
        """The rows by class; a label that is ignored, or out of range on a device, is put with another class."""
        classes, count = inputs.classes, self.covariance.num_classes
        return group_rows(classes if on_host(classes) else classes.clamp(0, count - 1), count)

    def _update_statistics(self, inputs: LossInputs, groups: Groups) -> None:
        """Update the covariance model with a batch that has features."""
        covariance = self.covariance
        with covariance.reporting_failure():
            rows = inputs.features
            if rows is None:
                raise ValueError("features must be given to update the statistics, got None")
            if isinstance(rows, Patches) and not covariance.takes_patches:
                rows = rows.dense()
            checked = groups if inputs.counts is None or not on_host(inputs.classes) else None
        covariance.update(rows, inputs.classes, mask=inputs.counts, groups=checked)
        if covariance.uses_logits:
            logits = as_rows(resize_logits(inputs.logits, inputs.grid, self.align_corners))
            covariance.observe(logits, inputs.classes, inputs.counts)

    def _loss(self, inputs: LossInputs, groups: Groups, strength: Any) -> Tensor:
        """The reduced loss of a batch at a strength; changes no state."""
        if not isinstance(strength, Tensor) and strength == 0:
            return self._plain_loss(inputs.logits, inputs.targets)
        with outside_autocast(inputs.logits.device):
            loss, penalty = self._augmented_loss(inputs, groups, strength), self.covariance.penalty()
        if penalty is None:
            return loss
        if isinstance(strength, Tensor):
            penalty = torch.where(strength > 0, penalty, 0)
        # Once per loss that is added up, so that it weighs the same in every reduction.
        return loss + penalty * (self._loss_count(inputs) if self.reduction == "sum" else 1)

    def _unlabelled_inputs(
        self, logits: Any, weight: Tensor | None, strength: float | None
    ) -> tuple[Tensor, Tensor, Any]:
        """Logits, weight and strength for a loss without labels, or a ValueError."""
        logits = logits_of(logits)
        if in_graph():
            weight = plain_weight(recorded_weight(self, logits, weight))
            used: float | Tensor = recorded_strength(self, strength)
        else:
            refuse_transforms(self)
            weight = plain_weight(self._weight_for(logits, weight))
            used = self.schedule.strength_for_call(strength)
        checks.check_shape("weight", weight, (self.num_classes, self.feature_dim))
        check_logits(logits, self.num_classes)
        return logits, weight, used

    def _check_classifier(
        self, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
    ) -> Tensor:
        """The weight as a plain (C, A) tensor; a ValueError for logits or a weight that do not fit the criterion."""
        check_not_sharded(logits=logits, targets=targets, features=features)
        check_logits(logits, self.num_classes)
        weight = plain_weight(weight)
        checks.check_shape("weight", weight, (self.num_classes, self.feature_dim))
        return weight

    def _wide(self, logits: Tensor) -> Tensor:
        """The logits in the dtype of the statistics, or in their own where that is wider."""
        return widen(logits, self.covariance.dtype)

    def _evaluate(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The plain loss of a classifier in eval mode, so that a training script validates without changes."""
        self._epochs.check(self.schedule, self.covariance)
        if logits.requires_grad:
            checks.warn(
                "the classifier is in eval mode, so this is plain cross-entropy and the statistics stay as they are; "
                "validate under torch.no_grad(), or train with the classifier in training mode"
            )
        return self._plain_loss(logits, targets)

    # -- what the attached classifier recorded -----------------------------------------------------------------------

    def _require_recorder(self, missing: str) -> Recorder:
        """The recorder, or the error that names what has to be given without one."""
        if self._recorder is None:
            raise ValueError(
                f"{missing} must be given, for example criterion(logits, targets, features=features, "
                "weight=head.weight); or use ISDALoss.attach(model, ...), which records them"
            )
        return self._recorder

    def _weight_for(self, logits: Tensor, weight: Tensor | None) -> Tensor:
        """The weight of the classifier, as given or as it was when it made the logits."""
        if weight is None:
            return self._require_recorder("weight").take_weight(logits, verify=self.validate)
        return weight

    def _classes_second(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, C, ...) and their targets; tokens of an attached classifier have their classes last."""
        if self._recorder is not None:
            last = has_classes_last(logits, targets, self.num_classes)
            if last or (last is None and self._recorder.made_last(logits)):
                return classes_second(logits, targets)
        return logits, targets

    def _clear_records(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        if self.schedule.automatic:
            return "lambda_0='auto'"
        return f"lambda_0={self.schedule.lambda_0}, total_steps={self.schedule.total_steps}"
