"""Shared by the integrations: import of an optional library, and replacement of a torch criterion during a fit."""

from __future__ import annotations

import weakref
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from isda._utils.extras import install_command
from isda.losses import AugmentedLoss, ISDABCELoss, ISDALoss
from isda.losses.schedule import StrengthSchedule


def import_library(library: str, extra: str) -> ModuleType:
    """Import ``library``, or say what to install.

    Args:
        library: the name by which it is imported.
        extra: the extra of isda-torch that brings it.

    Raises:
        ImportError: it is not installed.

    Example:
        >>> needs("a_library_nobody_has", "its-extra")
        Traceback (most recent call last):
        ...
        ImportError: a_library_nobody_has is not installed; pip install 'isda-torch[its-extra]'
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name != library.partition(".")[0]:
            raise  # it is there, but something that it uses itself is not: its own words say what
        raise ImportError(f"{library} is not installed; {install_command(extra)}", name=library) from None


class CriterionReplacement:
    """Makes the criterion that a fit trains with, and keeps its statistics until the next one.

    The statistics belong to the network: another fit of it goes on with them, another network starts with none. A
    loaded state is used by the next fit.

    Args:
        lambda_0: see ISDALoss.
        total_steps: T; None where every fit says how many steps it has.
        classifier: the last layer or its name, where it cannot be found by convention.
        settings: of ISDALoss or ISDABCELoss; the others are those of the criterion that is replaced.
    """

    def __init__(
        self, lambda_0: float, total_steps: int | None, classifier: nn.Module | str | None, settings: dict[str, Any]
    ) -> None:
        StrengthSchedule(lambda_0, total_steps)  # what is no strength or no number of steps is refused now
        self.lambda_0, self.total_steps, self.classifier, self.settings = lambda_0, total_steps, classifier, settings
        self.criterion: AugmentedLoss | None = None
        self._network: weakref.ref[nn.Module] | None = None
        self._loaded: dict[str, Any] | None = None

    def begin(self, plain: nn.Module, network: nn.Module, total_steps: int) -> AugmentedLoss:
        """The criterion for one fit, attached to ``network``.

        Args:
            plain: the nn.CrossEntropyLoss or nn.BCEWithLogitsLoss whose place it takes, with its settings.
            network: what is trained.
            total_steps: the optimiser steps of this fit, from the first on; a T that was asked for goes before.
        """
        kind, settings = _isda_counterpart(plain)
        bare = network.module if isinstance(network, nn.parallel.DistributedDataParallel) else network
        state = self._loaded
        if state is None and self.criterion is not None and self._network is not None and self._network() is bare:
            state = self.criterion.state_dict()
        steps = total_steps if self.total_steps is None else self.total_steps
        settings |= {"classifier": self.classifier, **self.settings}
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
        """Leave the network as it was; the statistics stay."""
        if self.criterion is not None:
            self.criterion.detach()

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step; empty before the first fit."""
        if self._loaded is not None:
            return self._loaded
        return {} if self.criterion is None else self.criterion.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from statistics and step of an earlier training, in the next fit."""
        self._loaded = dict(state) or None

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle does not know the network: it keeps the statistics as a state that was loaded."""
        return vars(self) | {"criterion": None, "_network": None, "_loaded": self.state_dict() or None}


def _isda_counterpart(plain: nn.Module) -> tuple[type[AugmentedLoss], dict[str, Any]]:
    """The criterion over augmented features that takes the place of one of torch, and its settings."""
    own = getattr(type(plain), "forward", None)
    if isinstance(plain, nn.CrossEntropyLoss) and own is nn.CrossEntropyLoss.forward:
        smoothing = {"label_smoothing": plain.label_smoothing, "ignore_index": plain.ignore_index}
        return ISDALoss, {"class_weight": plain.weight, "reduction": plain.reduction, **smoothing}
    if isinstance(plain, nn.BCEWithLogitsLoss) and own is nn.BCEWithLogitsLoss.forward:
        weights = {"class_weight": plain.weight, "pos_weight": plain.pos_weight}
        return ISDABCELoss, {"reduction": plain.reduction, **weights}
    kind = type(plain).__name__
    raise ValueError(f"criterion must be an nn.CrossEntropyLoss or an nn.BCEWithLogitsLoss, got {kind}")
