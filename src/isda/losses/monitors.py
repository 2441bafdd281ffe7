"""Monitors of a criterion in training: each warns, once or rarely, of something that fails without an error.

None of them makes a device wait in a training step.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from isda._utils.checks import warn
from isda._utils.devices import READ_EVERY, in_graph, on_host

if TYPE_CHECKING:
    from isda.covariance import CovarianceModel
    from isda.losses.schedule import StrengthSchedule

_RATIO = 10.0
_GROWTH = 1.1


def variance_and_spread(variance: Tensor, logits: Tensor, strength: float | Tensor) -> tuple[Tensor, Tensor]:
    """The mean of strength/2 * variance (N, C), and what the logits (N, C) of a sample vary by on average; detached."""
    return strength / 2 * variance.detach().mean(), logits.detach().std(1, correction=0).mean()


def capped_variance(variance: Tensor, logits: Tensor, strength: float | Tensor, max_ratio: float) -> Tensor:
    """The variance (N, C) as of a smaller strength where its term would exceed ``max_ratio`` times the logits' spread.

    Nothing is read on the host, and a variance within the limit is returned to the bit.
    """
    added, spread = variance_and_spread(variance, logits, strength)
    return variance * (max_ratio * spread / added).nan_to_num(nan=1.0, posinf=1.0).clamp(max=1.0)


class StrengthMonitor:
    """Warns, while the loss is still finite, if the variance term is far larger than differences between the logits.

    On the CPU it looks at every call: a run that diverges does so within ten steps. Elsewhere it looks at calls 1, 2,
    4, 8, ... and whenever the strength has grown by a tenth; a look leaves its result on the device, and results are
    read every hundredth call: no look makes the host wait.
    """

    def __init__(self) -> None:
        self._calls, self._seen_strength, self._warned = 0, 0.0, _RATIO
        self._worst: Tensor | None = None

    def check(self, variance: Tensor, logits: Tensor, strength: Any) -> None:
        """Look at strength/2 * variance (N, C) and at what the logits (N, C) of a sample vary by, on average."""
        if in_graph():
            return
        self._calls += 1
        if self._worst is not None and self._calls % READ_EVERY == 1:
            self._warn(self._worst)
            self._worst = None
        grown, power = strength >= _GROWTH * self._seen_strength, self._calls & (self._calls - 1) == 0
        if strength == 0 or not (grown or power or on_host(variance)):
            return
        self._seen_strength = strength if grown else self._seen_strength
        added, spread = variance_and_spread(variance, logits, strength)
        look = torch.stack([added / spread, added, spread, torch.full_like(added, strength)])
        if on_host(look):
            self._warn(look)
        else:
            self._worst = look if self._worst is None else torch.where(look[0] > self._worst[0], look, self._worst)

    def _warn(self, look: Tensor) -> None:
        ratio, added, spread, strength = look.tolist()
        if not ratio > self._warned:
            return
        self._warned = 2 * ratio  # again only if it becomes much worse
        warn(
            f"the variance term averages {added:.3g} where the logits of a sample vary by {spread:.3g}: at strength "
            f"{strength:.3g} it swamps them, and training may diverge; lower the learning rate, lower lambda_0, clip "
            "gradients, or use bound='tilted'"
        )


class RepeatMonitor:
    """Warns, once, of a second pass over a batch that counts again: sharpness-aware minimisation without ``held``.

    It is recognised by the same targets in two consecutive calls, between which the weight changed, but no optimizer of
    torch made a step. Nothing is read from a device. Scripts that move weights by hand are left alone: there has
    to be a step before.
    """

    def __init__(self) -> None:
        self._targets: weakref.ref[Tensor] | None = None
        self._versions, self._steps, self._warned = (0, 0), 0, False
        self._first = _OptimizerSteps.count_from_now()

    def __reduce__(self) -> tuple[type[RepeatMonitor], tuple[()]]:
        """A copy has seen no targets."""
        return (RepeatMonitor, ())

    def check(self, targets: Tensor, weight: Tensor) -> None:
        """Look at a call that counts: its targets as given, and the weight of the classifier."""
        if self._warned or targets.is_inference() or weight.is_inference():
            return
        versions, steps = (targets._version, weight._version), _OptimizerSteps.number
        same = self._targets is not None and self._targets() is targets and self._versions[0] == versions[0]
        if same and self._versions[1] != versions[1] and self._steps == steps > self._first:
            self._warned = True
            warn(
                "the statistics count the same batch twice: the weights changed between two passes over the same "
                "targets, but no optimizer made a step; put the second pass of sharpness-aware minimisation, and "
                "further evaluations of a closure, into `with criterion.held():`"
            )
        self._targets, self._versions, self._steps = weakref.ref(targets), versions, steps


class _OptimizerSteps:
    """How many steps the optimizers of torch have made since the first criterion was made."""

    number = 0
    _counted = False

    @classmethod
    def count_from_now(cls) -> int:
        if not cls._counted:
            cls._counted = True
            register_optimizer_step_post_hook(cls._count)
        return cls.number

    @classmethod
    def _count(cls, *_: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled step would be compiled again for every number
            cls.number += 1


_EVAL_STEPS = 3


class EvalModeMonitor:
    """Warns, once, of a criterion that is left in eval mode while a network trains: it is plain cross-entropy then.

    Where the classifier is known its mode tells. Elsewhere training is recognised by several calls in a row on logits
    with a graph, with a step of an optimizer of torch after each.
    """

    def __init__(self) -> None:
        self._seen, self._in_a_row, self._warned = _OptimizerSteps.count_from_now(), 0, False

    def check(self, logits: Tensor, classifier_trains: bool | None) -> None:
        """Look at a call in eval mode; ``classifier_trains`` is None where the classifier is not known."""
        if self._warned or not logits.requires_grad:
            return
        steps = _OptimizerSteps.number
        self._in_a_row = self._in_a_row + 1 if steps > self._seen else 0
        self._seen = steps
        trains = self._in_a_row >= _EVAL_STEPS if classifier_trains is None else classifier_trains
        if trains:
            self._warned = True
            warn(
                "the criterion is in eval mode while the network trains, so its loss is plain cross-entropy; call "
                "criterion.train() wherever model.train() is called, and evaluate under torch.no_grad()"
            )

    def reset(self) -> None:
        """After a call in training mode."""
        self._seen, self._in_a_row = _OptimizerSteps.number, 0


class EpochMonitor:
    """Looks at a criterion when an evaluation follows training, at the end of an epoch; each warning is given once.

    Reading counts makes a device wait: not in a training step, but in the first evaluation after one.
    """

    def __init__(self) -> None:
        self._calls = self._epochs = 0
        self._new = False
        self._warned: set[str] = set()

    def count_call(self) -> None:
        """After a training forward that has updated the statistics with the strength of the schedule."""
        self._calls += 1
        self._new = True

    def check(self, schedule: StrengthSchedule, covariance: CovarianceModel) -> None:
        """At an evaluation; does nothing unless there was a training forward since the last one."""
        if not self._new:
            return
        self._new = False
        self._epochs += 1
        if schedule.automatic and not schedule.strength:
            if self._epochs > 1 and not schedule.matched:
                self._warn(
                    "strength",
                    f"lambda_0='auto' was never matched in {self._epochs} epochs, so there was no augmentation; call "
                    "criterion.match(logits, targets) with held-out samples after each epoch",
                )
        elif schedule.lambda_0 and not schedule.strength:
            self._warn(
                "strength",
                f"the strength is still 0 after {self._calls} training calls, so there was no augmentation; call "
                "criterion.set_step(n) after every step of the optimizer, or pass optimizer=... to attach",
            )
        if schedule.in_window:
            self._warn(
                "window",
                f"an epoch ended in the middle of a window of advance_every={schedule.advance_every} calls: if the "
                "optimizer makes a step there, the schedule falls behind it; pass optimizer=... to attach instead",
            )
        if self._epochs == 1 and schedule.lambda_0:
            few = covariance.classes_below(2)
            if few:
                self._warn(
                    "counts",
                    f"{few} of {covariance.num_classes} classes have fewer than two samples in the statistics after an "
                    "epoch, so their covariance is 0 and they are not augmented; covariance='within' or 'shared' "
                    "needs fewer samples per class",
                )

    def _warn(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warn(message)
