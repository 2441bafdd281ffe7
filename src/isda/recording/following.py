"""From logits back to the passes that made them: through sums, scales and the operations that can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.recording.graph import LEAF, is_opaque, kind_of, walk
from isda.recording.hook import Hook
from isda.recording.places import Step
from isda.recording.record import Record
from isda.recording.sentences import BY_HAND
from isda.recording.stacks import stack_under
from isda.recording.steps import step_of

__all__ = ["Term", "Trail"]

_MOST_NODES = 64


class Term(NamedTuple):
    """One pass of one classifier, and how it entered the logits.

    Attributes:
        position: which of the classifiers.
        record: of the pass.
        shape: of the classifier's output.
        factors: what the output was multiplied by.
        steps: what happened to its places and samples, in turn.
    """

    position: int
    record: Record
    shape: torch.Size
    factors: tuple[float | Tensor, ...] = ()
    steps: tuple[Step, ...] = ()


class Trail:
    """Where the graph of some logits leads to.

    Attributes:
        terms: the passes whose outputs, scaled and moved, the logits are the sum of.
        stops: nodes beyond which nothing linear was found.
    """

    def __init__(self, logits: Tensor, hooks: Sequence[Hook]) -> None:
        self._hooks, self._logits, self._left = hooks, logits, _MOST_NODES
        self.stops: list[Any] = []
        self.terms = self._terms_of(logits.grad_fn, logits.output_nr, logits.shape)

    def check(self) -> None:
        """Raise where the logits come from a classifier, but not by sums, multiples and moves of its output alone."""
        for stop in self.stops:
            if any(self._records_on(node) for node in walk(stop)):
                raise ValueError(
                    f"the logits come from the classifier through {stop.name()}, so they are not known to be linear in "
                    f"its input: it may bend, scale, mix or drop them; call {BY_HAND} with the features that belong to "
                    "these logits and the weight times that scale"
                )
        if self.terms and self.stops:
            raise ValueError(
                f"the logits are the output of the classifier plus something that comes through "
                f"{self.stops[0].name()} and no recorded classifier made, so they are not linear in what was recorded; "
                f"pass all classifiers that are added up as classifier=[...], or call {BY_HAND}"
            )

    @property
    def is_hidden(self) -> bool:
        """Whether a compiled or checkpointed piece of the model may hide the classifier."""
        return any(is_opaque(node) for node in self.stops)

    def _records_on(self, node: Any) -> list[tuple[int, Record]]:
        return [(place, record) for place, hook in enumerate(self._hooks) for record in hook.records_on(node)]

    def _terms_of(self, node: Any, place: int, shape: torch.Size) -> list[Term]:
        """The terms of output number ``place`` of a node; nodes that lead nowhere are kept in ``stops``."""
        self._left -= 1
        if records := self._records_on(node):
            position, record = self._one_of(records)
            return [Term(position, record, shape)]
        kind = kind_of(node)
        if self._left > 0 and not is_opaque(node):
            if kind in ("Add", "Sub"):
                alpha = node._saved_alpha if kind == "Add" else -node._saved_alpha
                first, second = (self._input(node, number, shape) for number in (0, 1))
                return first + _scaled(second, float(alpha))
            if (stacked := stack_under(node)) is not None:
                stack, share = stacked
                parts = [self._input(stack, number, shape) for number in range(len(stack.next_functions))]
                return [term for part in parts for term in _scaled(part, share)]
            try:
                number, factor = _factor(node) if kind in ("Mul", "Div") else (0, None)
                step = step_of(node, place, shape)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"the logits come from the classifier through {node.name()}, which can no longer be read: {reason}"
                ) from None
            if factor is not None:
                return _scaled(self._input(node, number, shape), factor)
            if step is not None:
                number = place if kind == "_DDPSink" and len(node.next_functions) > place else 0
                return [term._replace(steps=(*term.steps, step)) for term in self._input(node, number, step.before)]
        self.stops.append(node)
        return []

    def _input(self, node: Any, number: int, shape: torch.Size) -> list[Term]:
        parent, place = node.next_functions[number] if number < len(node.next_functions) else (None, 0)
        if parent is None or parent.name() == LEAF:
            self.stops.append(node)
            return []
        return self._terms_of(parent, place, shape)

    def _one_of(self, records: list[tuple[int, Record]]) -> tuple[int, Record]:
        """The pass that made the logits among those of one node: several, if one compiled call ran the model twice."""
        own = records
        if len(records) > 1:
            own = [(place, record) for place, record in records if record.address == self._logits.data_ptr()]
        if len(own) != 1:
            times = "once each" if len({place for place, _ in records}) == len(records) else f"{len(records)} times"
            raise ValueError(
                f"one compiled call ran the classifier {times} and these logits {tuple(self._logits.shape)} belong to "
                f"no single output; compile the model without its classifier, or call {BY_HAND}"
            )
        return own[0]


def _factor(node: Any) -> tuple[int, float | Tensor | None]:
    """Which input of a product or quotient is scaled, and by what number; None where it is no single number."""
    if kind_of(node) == "Div":
        factor = _single(node._saved_other)
        return 0, None if factor is None else 1 / factor
    for number, saved in ((0, "_saved_other"), (1, "_saved_self")):
        parent = node.next_functions[number][0]
        if parent is not None and parent.name() != LEAF:
            factor = _single(getattr(node, saved))
            if factor is not None:
                return number, factor
    return 0, None


def _single(value: Tensor | None) -> float | Tensor | None:
    """A number as it stands in a script; one that lives in a tensor with a graph or elsewhere stays there."""
    if value is None or value.ndim > 1 or value.numel() != 1:
        return None
    if value.device.type == "cpu" and not value.requires_grad:
        number: Any = value.tolist()
        return float(number if value.ndim == 0 else number[0])
    return value.reshape(())


def _scaled(terms: list[Term], factor: float | Tensor) -> list[Term]:
    if isinstance(factor, float) and factor == 1:
        return terms
    return [term._replace(factors=(*term.factors, factor)) for term in terms]
