"""Base classes of the criteria over augmented features: attaching to a model, the strength schedule, and what one
call does with its inputs, statistics and loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.checks import warn_of_eval_mode
from isda._utils.choices import check_choice
from isda._utils.devices import on_host, outside_autocast
from isda.attach import Recorder, find_classifiers, in_backward, record_inputs, sizes_of
from isda.attach.autograd_compat import outside_graphs, refuse_transforms
from isda.attach.find import unwrap
from isda.covariance import CovarianceModel
from isda.covariance.memory import AUTO
from isda.functional.grouping import Groups, group_rows
from isda.functional.patches import Patches
from isda.losses.inputs import (
    LossInputs,
    RepeatMonitor,
    check_batch,
    check_logits,
    check_settings,
    features_and_weight,
    make_covariance,
    plain_weight,
    refuse_sizes,
    require_recorder,
    update_statistics,
)
from isda.losses.long_tail import MeanShift, Offset, check_providers, margin_terms
from isda.losses.schedule import StrengthSchedule
from isda.losses.targets import (
    SoftTargetMonitor,
    as_maps,
    as_rows,
    classes_second,
    has_classes_last,
    is_soft,
    logits_of,
    resize_logits,
)

_Criterion = TypeVar("_Criterion", bound="AttachableLoss")


class AttachableLoss(nn.Module):
    """A loss that is made with (num_classes, feature_dim, lambda_0, total_steps, **settings), by ``attach`` or by hand.

    What it shows of its strength lambda is its schedule's.
    """

    num_classes: int
    validate: bool
    schedule: StrengthSchedule
    _recorder: Recorder | None = None
    _last_strength = 0.0
    _held = False

    @classmethod
    def attach(
        cls: type[_Criterion],
        model: nn.Module,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        classifier: nn.Module | str | Sequence[nn.Module | str] | None = None,
        **settings: Any,
    ) -> _Criterion:
        """A criterion for a model nobody prepared: finds its classifier and records what goes into it.

        ``criterion(model(x), targets)`` then works like nn.CrossEntropyLoss, which it also is while the classifier is
        in eval mode: the rest of a training script, validation included, stays as it was. A criterion that was attached
        to the same classifier before is replaced; ``detach`` leaves the model as it was.

        Args:
            model: any network that ends in an nn.Linear or an nn.Conv2d, or in several that it averages or adds up,
                also wrapped or compiled.
            lambda_0: see ISDALoss.
            total_steps: see ISDALoss.
            classifier: the last layer or its name, where it cannot be found by convention; a list of those whose
                outputs are added up.
            **settings: see ISDALoss; the covariance is "auto" unless it is given.
        """
        refuse_sizes(settings)
        heads = find_classifiers(model, classifier)
        trained = next(parameter for part in (*heads, unwrap(model)) for parameter in part.parameters())
        settings = {"covariance": AUTO, "device": trained.device, "dtype": trained.dtype, **settings}
        sizes = [sizes_of(head) for head in heads]
        criterion = cls(sizes[0][0], sum(size for _, size in sizes), lambda_0, total_steps, **settings)
        criterion._recorder = record_inputs(*heads, model=model)
        return criterion

    def detach(self) -> None:
        """Take the hook off the model, which is then as it was before ``attach``: it can be pickled without isda.

        The statistics stay, and ``criterion(logits, targets, features=..., weight=...)`` works on. Does nothing for a
        criterion that is not attached.
        """
        if self._recorder is not None:
            self._recorder.detach()
            self._recorder = None

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
        """T, the number of steps over which the strength grows; None for a constant lambda_0; it can be set."""
        return self.schedule.total_steps

    @total_steps.setter
    def total_steps(self, value: int | None) -> None:
        self.schedule.total_steps = value

    def set_step(self, step: int) -> None:
        """Let the optimiser's step drive the schedule: t = ``step``, and training forwards no longer move it.

        Call it after every step of the optimiser, with the number of steps so far; it is exact for windows of gradient
        accumulation of any length. Setting ``advance_every`` makes forwards count again. The state_dict remembers who
        drives.

        Example:
            >>> from isda import ISDALoss
            >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
            >>> criterion.set_step(20)
            >>> criterion.strength
            0.1
        """
        self.schedule.set_step(step)

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

    # -- what the attached classifier recorded -----------------------------------------------------------------------

    def _weight_for(self, logits: Tensor, weight: Tensor | None) -> Tensor:
        """The weight of the classifier, as given or as it was when it made the logits."""
        if weight is None:
            return require_recorder(self._recorder, logits, weight).take_weight(logits, verify=self.validate)
        return weight

    def _as_torch_has_it(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, C, ...) and their targets; tokens of an attached classifier have their classes last."""
        if self._recorder is not None:
            last = has_classes_last(logits, targets, self.num_classes)
            if last or (last is None and self._recorder.made_last(logits)):
                return classes_second(logits, targets)
        return logits, targets

    def _forget_recorded(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"lambda_0={self.schedule.lambda_0}, total_steps={self.schedule.total_steps}"


_REDUCTIONS = ("mean", "sum", "none")


class SemanticLoss(AttachableLoss, ABC):
    """The expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), which a subclass bounds or estimates.

    In training mode a call updates the class covariances with the features, evaluates the loss at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.
    The arguments are those of ISDALoss.
    """

    class_weight: Tensor | None

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        covariance: str | CovarianceModel = "full",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        offset: Offset | None = None,
        shift: MeanShift | None = None,
        align_corners: bool = False,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, _REDUCTIONS)
        check_settings(num_classes, label_smoothing, class_weight)
        self.schedule = StrengthSchedule(lambda_0, total_steps, device)
        self.covariance = make_covariance(
            covariance, num_classes, feature_dim, covariance_settings, type(self), device=device, dtype=dtype
        )
        check_providers(offset, shift, self.covariance)
        self.covariance.validate = validate
        self.offset = None if offset is None else offset.to(device, self.covariance.dtype)
        self.shift = None if shift is None else shift.to(device)
        self.num_classes, self.feature_dim = self.covariance.num_classes, self.covariance.feature_dim
        self.ignore_index, self.label_smoothing = ignore_index, float(label_smoothing)
        self.align_corners, self.validate = align_corners, validate
        self.register_buffer("class_weight", class_weight)
        self.shares, self._repeats = SoftTargetMonitor(), RepeatMonitor()

    # -- what a criterion brings -------------------------------------------------------------------------------------

    @abstractmethod
    def _augmented_loss(self, batch: LossInputs, groups: Groups, strength: float) -> Tensor:
        """The loss at a strength above 0, reduced; called outside autocast."""

    @abstractmethod
    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """The consistency loss of unlabelled samples, section 5; needs no labels and changes no state."""

    def _checked(self, logits: Tensor, targets: Tensor, features: Tensor | Patches, weight: Tensor) -> LossInputs:
        """The input of a call in one form, or a ValueError."""
        return check_batch(self, logits, targets, features, weight)

    # -- a call ------------------------------------------------------------------------------------------------------

    @outside_graphs
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
        if not self.training:
            logits, targets = self._as_torch_has_it(logits_of(logits), targets)
            self._forget_recorded()
            return self._cross_entropy(logits, targets)
        refuse_transforms(self)
        given = targets
        recomputing = in_backward() or self._held
        moves = strength is None
        alone = features is None and weight is None and self._recorder is None and self.shift is None
        plain = alone and self.schedule.lambda_0 == 0
        # A recomputation under activation checkpointing must see what the first run saw, and count nothing twice; nor
        # do a second call on one pass, as mixup may make it, and a second pass over the batch.
        counts = not (recomputing or plain)
        try:
            logits = logits_of(logits)
            strength = self.schedule.chosen(self._last_strength if recomputing and strength is None else strength)
            if plain and strength == 0:
                return (
                    self._cross_entropy(logits, targets) if self.offset is None else self._offset_loss(logits, targets)
                )
            rows, weight, record = features_and_weight(self._recorder, logits, features, weight, verify=self.validate)
            if rows is None or weight is None:
                counts = False
                return self._evaluate(*self._as_torch_has_it(logits, targets))
            if record is not None and record.has_classes_last(logits):
                logits, targets = classes_second(logits, targets)
            if record is not None and record.strength is not None:
                counts, strength = False, record.strength if moves else strength
            batch = self._checked(logits, targets, rows, weight)
            groups = self._groups(batch)
        except Exception as error:
            if counts:
                self.covariance.withdraw(error)
            raise
        if counts:
            if record is not None and record.joining:
                self.covariance.refuse_join()
            update_statistics(self.covariance, batch, groups, self.align_corners)
            if self.validate:
                self._repeats.check(given, weight)
        loss = self._loss(self._with_terms(batch, groups, strength), groups, strength)
        if counts:
            self._last_strength = strength
            if record is not None:
                record.strength = strength
            if moves:
                self.schedule.advance()
        return loss

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        checks.check_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with class weights that the constructor refuses, before any of it is loaded."""
        for name in self._buffers:
            checks.check_entry(prefix + name, state.get(prefix + name), 0)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _groups(self, batch: LossInputs) -> Groups:
        """The rows by class; a label that does not count, or is out of range on a device, is put with another class."""
        classes = batch.classes
        if not on_host(classes):
            classes = classes.clamp(0, self.num_classes - 1)
        return group_rows(classes, self.num_classes)

    def _with_terms(self, batch: LossInputs, groups: Groups, strength: float) -> LossInputs:
        """The batch with what shifts and offsets add to its logits (isda.functional.long_tail); itself without them."""
        share = strength / self.schedule.lambda_0 if self.schedule.lambda_0 else 1.0
        with outside_autocast(batch.logits.device):
            terms = margin_terms(self.offset, self.shift, share, self.covariance, batch, groups, self.align_corners)
            if terms is None:
                return batch
            logits = self._wide(batch.logits)
            return batch._replace(logits=logits + terms.to(logits.dtype))

    def _offset_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with offsets alone, which needs neither features nor weights."""
        nothing = logits.new_zeros(1, 1).expand(self.num_classes, self.feature_dim)
        batch = check_batch(self, logits, targets, None, nothing)
        return self._cross_entropy(self._with_terms(batch, self._groups(batch), 0.0).logits, targets)

    def _loss(self, batch: LossInputs, groups: Groups, strength: float) -> Tensor:
        if strength == 0:
            return self._cross_entropy(batch.logits, batch.targets)
        with outside_autocast(batch.logits.device):
            loss, penalty = self._augmented_loss(batch, groups, strength), self.covariance.penalty()
        if penalty is None:
            return loss
        # Once per loss that is added up, so that it weighs the same in every reduction.
        return loss + penalty * (self._terms(batch) if self.reduction == "sum" else 1)

    def _terms(self, batch: LossInputs) -> int:
        """How many losses a call adds up."""
        return len(batch.classes)

    def _over_unlabelled(
        self,
        logits: Tensor,
        weight: Tensor | None,
        strength: float | None,
        loss_of: Callable[[Tensor, Tensor, float], Tensor],
    ) -> Tensor:
        """The reduced loss of unlabelled samples; ``loss_of`` maps rows of logits, W and lambda to losses (rows,)."""
        refuse_transforms(self)
        logits = logits_of(logits)
        weight = plain_weight(self._weight_for(logits, weight))
        strength = self.schedule.chosen(strength)
        self.covariance.check_weight(weight)
        check_logits(self, logits)
        with outside_autocast(logits.device):
            loss = loss_of(as_rows(self._wide(logits)), self.covariance.as_statistics(weight), strength)
        if self.reduction == "none":
            return as_maps(loss.unsqueeze(1), len(logits), logits.shape[2:]).squeeze(1)
        return loss.mean() if self.reduction == "mean" else loss.sum()

    def _wide(self, logits: Tensor) -> Tensor:
        """The logits in the dtype of the statistics, or in their own where that is wider."""
        dtype = torch.promote_types(logits.dtype, self.covariance.dtype)
        return logits if logits.dtype == dtype else logits.to(dtype)

    def _evaluate(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The attached classifier was in eval mode: a script that changed one line validates with us, too."""
        if logits.requires_grad:
            warn_of_eval_mode()
        return self._cross_entropy(logits, targets)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        soft = is_soft(targets)
        if logits.ndim > 2 and not soft:
            logits = resize_logits(logits, targets.shape[1:], self.align_corners)
        return F.cross_entropy(
            logits,
            targets if soft else targets.long(),
            weight=None if self.class_weight is None else self.class_weight.to(logits.dtype),
            # Distributions have no label to ignore, and torch refuses an ignore_index >= 0 beside them.
            ignore_index=-100 if soft else self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
