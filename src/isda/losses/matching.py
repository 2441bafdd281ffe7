"""lambda_0="auto": the strength at which the augmented training loss predicts the held-out loss.

After each evaluation lambda solves L_train(lambda) = L_held-out, both losses at the same weights, in eval mode.
L_train is the bound that is trained, as a function of lambda alone; it grows with lambda. Without a gap between the two
losses there is no augmentation; as the network starts to overfit, lambda grows. A network that is less confident than
the held-out samples warrant is taken with its logits scaled up to where the held-out loss is lowest: too large a lambda
lowers confidence, and the loss that this costs is no reason for an even larger one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.devices import in_eval_mode
from isda.attach.autograd_compat import outside_graphs
from isda.losses.schedule import StrengthSchedule, strength_dtype
from isda.losses.targets import is_soft

SOLUTIONS = 5
"""The strength is the median of so many solutions: held-out losses are noisy."""
KEPT_SAMPLES = 512
"""Training samples, at least, on whose loss the solution is based; those of the latest batches."""
KEPT_ROWS = 16_384
"""Rows of logits at most that take part in a solution: of pixels, evenly spaced ones."""
LARGEST_STRENGTH = 1e3
LARGEST_SCALE = 2.0
_RELATIVE_ERROR, _ROUNDING = 1e-4, 1e-6
_SCALE_ERROR, _GOLDEN = 1e-3, (3 - 5**0.5) / 2


def solve_strength(loss_at: Callable[[float], float], target: float, largest: float = LARGEST_STRENGTH) -> float:
    """The lambda at which an increasing loss equals ``target``, by bisection; 0 if the loss at 0 is not below it.

    Gaps of less than 1e-6 are taken for rounding.

    Args:
        loss_at: the loss as a function of lambda >= 0.
        target: the loss to reach.
        largest: returned if the loss stays below the target up to it.

    Example:
        >>> round(solve_strength(lambda strength: 1 + strength**2, 5.0), 3)
        2.0
        >>> solve_strength(lambda strength: 1 + strength, 0.5)
        0.0
    """
    if not loss_at(0.0) < target - _ROUNDING * max(1.0, abs(target)):
        return 0.0
    low, high = 0.0, 1.0
    while loss_at(high) < target:
        if high >= largest:
            return largest
        low, high = high, min(2 * high, largest)
    while high - low > _RELATIVE_ERROR * high:
        middle = (low + high) / 2
        if loss_at(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def sharper_scale(loss_at: Callable[[float], float], largest: float = LARGEST_SCALE) -> float:
    """The factor on the logits, from 1 to ``largest``, at which a convex loss is lowest; exactly 1 if it grows there.

    Args:
        loss_at: the mean cross-entropy of held-out samples as a function of the factor.
        largest: few held-out samples, all of them right, ask for any factor.

    Example:
        >>> round(sharper_scale(lambda scale: (scale - 1.5) ** 2), 2), sharper_scale(lambda scale: scale)
        (1.5, 1.0)
    """
    if loss_at(1.0) <= loss_at(1.0 + _SCALE_ERROR):
        return 1.0
    low, high = 1.0, largest
    while high - low > _SCALE_ERROR:
        first, second = low + _GOLDEN * (high - low), high - _GOLDEN * (high - low)
        low, high = (low, second) if loss_at(first) < loss_at(second) else (first, high)
    return (low + high) / 2


class AutomaticStrength(StrengthSchedule):
    """The median of the last solutions; 0 before the first. Steps are counted and do not matter.

    Args:
        device: of the step counter.
    """

    automatic = True
    level: Tensor
    """The strength, where graphs read it."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        super().__init__(0.0, None, device, "constant")
        self.lambda_0 = math.nan
        self.solutions: list[float] = []
        self.register_buffer("level", torch.zeros((), dtype=strength_dtype(device), device=device), persistent=False)

    @property
    def strength(self) -> float:
        """The current lambda."""
        return median(self.solutions) if self.solutions else 0.0

    def recorded_strength(self, dtype: torch.dtype) -> Tensor:
        """The current lambda, without dimensions."""
        return self.level.to(dtype)

    @property
    def matched(self) -> bool:
        """Whether there is a solution."""
        return bool(self.solutions)

    def add(self, solution: float) -> None:
        """Take a solution into the median."""
        self.solutions = [*self.solutions, solution][-SOLUTIONS:]
        self.level.fill_(self.strength)

    def get_extra_state(self) -> Tensor:
        """The solutions, oldest first, padded by -1."""
        padded = self.solutions + [-1.0] * (SOLUTIONS - len(self.solutions))
        return torch.tensor(padded, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the solutions."""
        self.solutions = [value for value in state.tolist() if value >= 0]
        self.level.fill_(self.strength)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        super()._check_state(state, prefix)
        solutions = state.get(prefix + "_extra_state")
        checks.check_entry(prefix + "_extra_state", solutions, -1)

    def extra_repr(self) -> str:
        """Show the strength in repr()."""
        return f"strength={self.strength:.3g}"


class TrainingSamples:
    """Inputs and labels of the latest training batches, to compute their loss in eval mode.

    A forward pre-hook on the model. A copy or pickle of the model has one of its own, without samples. The inputs are
    kept as they were passed to the model, not copied.

    Args:
        model: the model that the criterion is attached to.
        least: samples to keep, at least; 0 to keep none.
    """

    def __init__(self, model: nn.Module | None = None, least: int = KEPT_SAMPLES) -> None:
        self._least, self._removed = least, False
        self._model = None if model is None else weakref.ref(model)
        self._handle = None if model is None else model.register_forward_pre_hook(self, with_kwargs=True)
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._batches: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = []

    def __reduce__(self) -> tuple[type[TrainingSamples], tuple[None, int]]:
        """Copies hold no samples."""
        return (TrainingSamples, (None, self._least))

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the inputs of a training pass until its labels come."""
        if self.keeps_batches:
            self._keep(module, args, kwargs)

    @outside_graphs
    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._model is None:
            self._model = weakref.ref(module)
        if module.training and torch.is_grad_enabled():
            self._inputs = (args, kwargs)

    @property
    def keeps_batches(self) -> bool:
        """Whether inputs are kept."""
        return self._least > 0 and not self._removed

    def remove(self) -> None:
        """Take the hook off the model and drop the samples."""
        if self._handle is not None:
            self._handle.remove()
        self._model = self._handle = self._inputs = None
        self._batches, self._removed = [], True

    def add(self, targets: Tensor) -> None:
        """The labels of the pass whose inputs came last; distributions do not take part."""
        inputs, self._inputs = self._inputs, None
        if inputs is None or is_soft(targets) or not self._least:
            return
        self._batches.append((*inputs, targets.detach()))
        while sum(len(labels) for *_, labels in self._batches[1:]) >= self._least:
            del self._batches[0]

    def __len__(self) -> int:
        """How many batches are kept."""
        return len(self._batches)

    @property
    def model(self) -> nn.Module | None:
        """The model, while it exists."""
        return None if self._model is None else self._model()

    def outputs(self) -> list[tuple[Any, Tensor]]:
        """Outputs of the model in eval mode, and labels, of the kept batches."""
        model = self.model
        if model is None:
            return []
        with torch.no_grad(), in_eval_mode(model):
            return [(model(*args, **kwargs), targets) for args, kwargs, targets in self._batches]


def loader_outputs(model: nn.Module, loader: Iterable[Any]) -> list[tuple[Any, Tensor]]:
    """Outputs of the model in eval mode, and labels, of a loader of (inputs, targets)."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    outputs = []
    with torch.no_grad(), in_eval_mode(model):
        for batch in loader:
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor)):
                raise ValueError("the loader must yield (inputs, targets); for others pass logits and targets")
            inputs, targets = batch
            output = model(inputs.to(device) if isinstance(inputs, Tensor) else inputs)
            outputs.append((output, targets.to(device)))
    return outputs
