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
    """Import ``library``, or raise an ImportError that names the extra of isda-torch to install.

    Example:
        >>> import_library("a_library_nobody_has", "its-extra")
        Traceback (most recent call last):
        ...
        ImportError: a_library_nobody_has is not installed; pip install 'isda-torch[its-extra]'
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name != library.partition(".")[0]:
            raise  # the library is installed, but one of its dependencies is not
        raise ImportError(f"{library} is not installed; {install_command(extra)}", name=library) from None


class CriterionReplacement:
    """Creates the criterion of a fit, and keeps its statistics until the next one.

    The statistics belong to the network: another fit of it continues with them, another network starts without. A
    loaded state is used by the next fit.

    Args:
        lambda_0: see ISDALoss.
        total_steps: T; None for the number of steps of each fit.
        classifier: the last layer or its name, if it cannot be found by convention.
        settings: of ISDALoss or ISDABCELoss; the others are those of the criterion that is replaced.
    """

    def __init__(
        self, lambda_0: float, total_steps: int | None, classifier: nn.Module | str | None, settings: dict[str, Any]
    ) -> None:
        StrengthSchedule(lambda_0, total_steps)  # raises for invalid values
        self.lambda_0, self.total_steps, self.classifier, self.settings = lambda_0, total_steps, classifier, settings
        self.criterion: AugmentedLoss | None = None
        self._network: weakref.ref[nn.Module] | None = None
        self._loaded: dict[str, Any] | None = None

    def begin(self, plain: nn.Module, network: nn.Module, total_steps: int) -> AugmentedLoss:
        """The criterion for one fit, attached to ``network``.

        Args:
            plain: the nn.CrossEntropyLoss or nn.BCEWithLogitsLoss that it replaces, with its settings.
            network: the network to train.
            total_steps: the optimiser steps of this fit; used if the constructor was given none.
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
