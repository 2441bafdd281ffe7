"""Shared by the integrations: import of an optional library, replacement of a torch criterion during a fit, the match
of lambda_0="auto" after an evaluation, and warnings about a strength that has no effect.
"""

from __future__ import annotations

import math
import weakref
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils.checks import warn
from isda._utils.distributed import all_reduce_sum, world_size
from isda._utils.extras import install_command
from isda.losses import AugmentedLoss, ISDABCELoss, ISDALoss
from isda.losses.matching import KEPT_ROWS, AutomaticStrength
from isda.losses.schedule import StrengthSchedule

AUTO, CONSTANT = "auto", "constant"
_MUCH_LONGER = 10
"""A T of so many times the steps of a training leaves the strength at no more than a tenth of lambda_0."""


def import_library(library: str, extra: str) -> ModuleType:
    """Import ``library``, or raise an ImportError that names the extra of isda-torch to install.

    Example:
        >>> import_library("a_library_nobody_has", "its-extra")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ImportError: a_library_nobody_has is not installed; pip install ...[its-extra]"
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name != library.partition(".")[0]:
            raise  # the library is installed, but one of its dependencies is not
        raise ImportError(f"{library} is not installed; {install_command(extra)}", name=library) from None


def check_strength(lambda_0: float | str, total_steps: int | None = None, schedule: str | None = None) -> None:
    """Raise ValueError for a strength that ISDALoss refuses, before there is a network to attach to.

    Example:
        >>> check_strength("auto", total_steps=100)
        Traceback (most recent call last):
        ...
        ValueError: total_steps must not be given with lambda_0='auto', got 100
    """
    fixed = "lambda_0='auto'" if lambda_0 == AUTO else "schedule='constant'" if schedule == CONSTANT else None
    if fixed is not None and total_steps is not None:
        raise ValueError(f"total_steps must not be given with {fixed}, got {total_steps!r}")
    if lambda_0 == AUTO:
        if schedule is not None:
            raise ValueError(f"schedule must not be given with lambda_0='auto', got {schedule!r}")
    elif isinstance(lambda_0, str):
        raise ValueError(f"lambda_0 must be a finite number >= 0 or 'auto', got {lambda_0!r}")
    else:
        StrengthSchedule(lambda_0, total_steps)


def steps_for(lambda_0: float | str, schedule: str | None, steps: int) -> int | None:
    """The total_steps for ``attach``: None where the strength does not grow with the steps."""
    return None if lambda_0 == AUTO or schedule == CONSTANT else steps


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None: the others have the defaults of the criterion.

    Example:
        >>> given(covariance="diagonal", rank=None)
        {'covariance': 'diagonal'}
    """
    return {name: value for name, value in settings.items() if value is not None}


class HeldOutLogits:
    """Logits and labels of an evaluation, to which a criterion with lambda_0="auto" is matched.

    At most 16,384 rows are kept, as in ``ISDALoss.match``: of more samples, tokens or pixels, evenly spaced ones.

    Args:
        criterion: with lambda_0="auto".
    """

    def __init__(self, criterion: ISDALoss) -> None:
        self._criterion = criterion
        self.clear()

    @classmethod
    def of(cls, criterion: AugmentedLoss) -> HeldOutLogits | None:
        """That of a criterion with lambda_0="auto"; None for a number."""
        return cls(criterion) if isinstance(criterion, ISDALoss) and criterion.schedule.automatic else None

    def clear(self) -> None:
        """Start a new evaluation."""
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._kept, self._seen, self._every = 0, 0, 1

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch: logits (N, C, ...) in eval mode, and class indices (N, ...)."""
        rows, labels = self._criterion.labelled_rows(logits.detach(), targets)
        first = -self._seen % self._every
        self._seen += len(labels)
        self._keep([*self._batches, (rows[first :: self._every], labels[first :: self._every])])
        while self._kept > KEPT_ROWS:
            rows, labels = self._together()
            self._every *= 2
            self._keep([(rows[::2], labels[::2])])

    def match(self) -> None:
        """Set the strength; without a label nothing changes. With several processes, each has to call it."""
        criterion, covariance = self._criterion, self._criterion.covariance
        count = covariance.count.new_tensor(self._kept)
        if covariance.sync and world_size(covariance.process_group) > 1:
            count = all_reduce_sum(count)
        if count and not self._kept:  # other processes have labels
            ignored = covariance.count.new_full((1,), criterion.ignore_index)
            criterion.match(covariance.as_statistics(ignored.new_zeros(1, criterion.num_classes)), ignored)
        elif count:
            criterion.match(*self._together())
        self.clear()

    def _keep(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches, self._kept = batches, sum(len(labels) for _, labels in batches)

    def _together(self) -> tuple[Tensor, Tensor]:
        rows, labels = zip(*self._batches, strict=True)
        return torch.cat(rows), torch.cat(labels)


def warn_of_no_strength(criterion: AugmentedLoss, evaluation: str, planned: float = math.inf) -> None:
    """Warn if ISDA has no effect, or next to none; called once, at the end of the first epoch.

    Args:
        criterion: after the epoch and its evaluation.
        evaluation: what has to be done to have an evaluation, for lambda_0="auto".
        planned: the optimiser steps of the whole training.
    """
    schedule = criterion.schedule
    if isinstance(schedule, AutomaticStrength):
        if not schedule.solutions:
            warn(
                "the strength of lambda_0='auto' is still 0 at the end of the first epoch, because no evaluation has "
                f"set it; {evaluation}"
            )
    elif schedule.lambda_0 > 0 and schedule.strength == 0:
        warn(
            f"the strength is still 0 at the end of the first epoch, although lambda_0={schedule.lambda_0:g}: no step "
            "of the optimiser was counted"
        )
    elif schedule.lambda_0 > 0 and _MUCH_LONGER * planned <= (schedule.total_steps or 0):
        share = planned / (schedule.total_steps or 1)
        warn(
            f"the strength will end at {schedule.lambda_0 * share:.2g} instead of lambda_0={schedule.lambda_0:g}, "
            f"because total_steps={schedule.total_steps} where the training has {planned:g} steps"
        )


class CriterionReplacement:
    """Creates the criterion of a fit, and keeps its statistics until the next one.

    The statistics belong to the network: another fit of it continues with them, another network starts without. A
    loaded state is used by the next fit.

    Args:
        lambda_0: see ISDALoss.
        total_steps: T; None for the number of steps of each fit.
        classifier: the last layer or its name, if it cannot be found by convention.
        schedule: "constant" for a strength of lambda_0 from the first step on.
        settings: of ISDALoss or ISDABCELoss; the others are those of the criterion that is replaced.
    """

    def __init__(
        self,
        lambda_0: float | str,
        total_steps: int | None,
        classifier: nn.Module | str | None,
        schedule: str | None,
        settings: dict[str, Any],
    ) -> None:
        check_strength(lambda_0, total_steps, schedule)
        self.lambda_0, self.total_steps, self.classifier, self.schedule = lambda_0, total_steps, classifier, schedule
        self.settings = settings
        self.criterion: AugmentedLoss | None = None
        self._network: weakref.ref[nn.Module] | None = None
        self._loaded: dict[str, Any] | None = None

    @property
    def automatic(self) -> bool:
        """Whether the strength is matched to evaluations."""
        return self.lambda_0 == AUTO

    @property
    def needs_steps(self) -> bool:
        """Whether the number of steps of a fit is needed."""
        return self.total_steps is None and steps_for(self.lambda_0, self.schedule, 1) is not None

    def begin(
        self, plain: nn.Module, network: nn.Module, total_steps: int, classifier: nn.Module | str | None = None
    ) -> AugmentedLoss:
        """The criterion for one fit, attached to ``network``.

        Args:
            plain: the nn.CrossEntropyLoss or nn.BCEWithLogitsLoss that it replaces, with its settings.
            network: the network to train.
            total_steps: the optimiser steps of this fit; used if the constructor was given none.
            classifier: the last layer or its name in ``network``; the constructor's by default.
        """
        kind, settings = _isda_counterpart(plain)
        bare = network.module if isinstance(network, nn.parallel.DistributedDataParallel) else network
        state = self._loaded
        if state is None and self.criterion is not None and self._network is not None and self._network() is bare:
            state = self.criterion.state_dict()
        steps = steps_for(self.lambda_0, self.schedule, self.total_steps or total_steps)
        settings |= {"classifier": classifier or self.classifier, **given(schedule=self.schedule), **self.settings}
        criterion = kind.attach(network, self.lambda_0, steps, **settings)
        if state is not None:
            try:
                criterion.load_state_dict(state)
            except Exception:
                criterion.detach()
                raise
        self.criterion, self._network, self._loaded = criterion, weakref.ref(bare), None
        return criterion

    def end(self) -> None:
        """Detach the criterion from the network; the statistics stay."""
        if self.criterion is not None:
            self.criterion.detach()

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step; empty before the first fit."""
        if self._loaded is not None:
            return self._loaded
        return {} if self.criterion is None else self.criterion.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Use these statistics and this step in the next fit."""
        self._loaded = dict(state) or None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no network: they keep the statistics as a loaded state."""
        return vars(self) | {"criterion": None, "_network": None, "_loaded": self.state_dict() or None}


def _isda_counterpart(plain: nn.Module) -> tuple[type[AugmentedLoss], dict[str, Any]]:
    """The ISDA criterion that replaces one of torch, and the settings that it takes over."""
    forward = getattr(type(plain), "forward", None)
    settings = {"class_weight": getattr(plain, "weight", None), "reduction": getattr(plain, "reduction", None)}
    if isinstance(plain, nn.CrossEntropyLoss) and forward is nn.CrossEntropyLoss.forward:
        smoothing = {"label_smoothing": plain.label_smoothing, "ignore_index": plain.ignore_index}
        return ISDALoss, settings | smoothing
    if isinstance(plain, nn.BCEWithLogitsLoss) and forward is nn.BCEWithLogitsLoss.forward:
        return ISDABCELoss, settings | {"pos_weight": plain.pos_weight}
    kind = type(plain).__name__
    raise ValueError(f"criterion must be an nn.CrossEntropyLoss or an nn.BCEWithLogitsLoss, got {kind}")
