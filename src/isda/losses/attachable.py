"""A criterion in a training script, but for its calls: attached to a model, its strength driven by steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from isda.attach import find_classifiers
from isda.attach.wrappers import unwrap
from isda.covariance.auto import AUTO
from isda.losses.arguments import check_found
from isda.losses.inputs import attached
from isda.losses.outputs import classes_second, has_classes_last
from isda.losses.schedule import StrengthSchedule
from isda.recording import Recorder, record_inputs, sizes_of

__all__ = ["AttachableLoss"]

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
        check_found(settings)
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
            return attached(self._recorder, logits, weight).take_weight(logits, verify=self.validate)
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
