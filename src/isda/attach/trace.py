"""From logits back to the recorded features: the autograd graph is traced to the forward passes of the classifiers,
and features and weight are returned such that logits = W a + b.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils.checks import shape_of
from isda._utils.devices import outside_autocast
from isda.attach.autograd_compat import (
    MOST_NODES,
    added_scale,
    input_count,
    input_of,
    is_opaque,
    nearest_nodes,
    operation_name,
    saved_factor,
)
from isda.attach.hook import (
    EXPLICIT_CALL,
    NO_RECORD,
    ForwardRecord,
    RecordingHook,
    drops_features,
    remove_hooks,
    weight_of,
)
from isda.attach.operations import TracedFeatures, TracedOperation, operation_of, stacked_inputs
from isda.functional.patches import Patches


class Contribution(NamedTuple):
    """One pass of one classifier, and how it entered the logits.

    Attributes:
        classifier: which of the classifiers.
        record: of the pass.
        shape: of the classifier's output.
        factors: what the output was multiplied by.
        steps: what happened to its samples and pixels, in order.
    """

    classifier: int
    record: ForwardRecord
    shape: torch.Size
    factors: tuple[float | Tensor, ...] = ()
    steps: tuple[TracedOperation, ...] = ()


class GraphTrace:
    """Where the graph of some logits leads to.

    Attributes:
        terms: the passes whose outputs, scaled and moved, the logits are the sum of.
        stops: nodes whose inputs the logits are not known to be linear in.
    """

    def __init__(self, logits: Tensor, hooks: Sequence[RecordingHook]) -> None:
        self._hooks, self._logits, self._left = hooks, logits, MOST_NODES
        self.stops: list[Any] = []
        self.terms = self._terms_of(logits.grad_fn, logits.output_nr, logits.shape)

    def check(self) -> None:
        """Raise where the logits come from a classifier, but not by sums, multiples and moves of its output alone."""
        for stop in self.stops:
            if any(self._records_on(node) for node in nearest_nodes(stop)):
                raise ValueError(
                    f"the logits come from the classifier through {stop.name()}, so they are not known to be linear in "
                    f"its input: it may bend, scale, mix or drop them; call {EXPLICIT_CALL} with the features "
                    "that belong to these logits and the weight times that scale"
                )
        if self.terms and self.stops:
            raise ValueError(
                f"the logits are the output of the classifier plus something that comes through "
                f"{self.stops[0].name()} and no recorded classifier made, so they are not linear in what was recorded; "
                f"pass all classifiers that are added up as classifier=[...], or call {EXPLICIT_CALL}"
            )

    @property
    def is_hidden(self) -> bool:
        """Whether a compiled or checkpointed piece of the model may hide the classifier."""
        return any(is_opaque(node) for node in self.stops)

    def _records_on(self, node: Any) -> list[tuple[int, ForwardRecord]]:
        return [(index, record) for index, hook in enumerate(self._hooks) for record in hook.records_on(node)]

    def _terms_of(self, node: Any, output: int, shape: torch.Size) -> list[Contribution]:
        """The terms of one output of a node; nodes that are not linear are kept in ``stops``."""
        self._left -= 1
        if records := self._records_on(node):
            classifier, record = self._matching(records)
            return [Contribution(classifier, record, shape)]
        name = operation_name(node)
        if self._left > 0 and not is_opaque(node):
            if name in ("Add", "Sub"):
                first, second = (self._input(node, number, shape) for number in (0, 1))
                return first + _scaled(second, added_scale(node))
            if (stacked := stacked_inputs(node)) is not None:
                stack, share = stacked
                parts = [self._input(stack, number, shape) for number in range(input_count(stack))]
                return [term for part in parts for term in _scaled(part, share)]
            try:
                number, factor = _factor(node) if name in ("Mul", "Div") else (0, None)
                step = operation_of(node, output, shape)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"the logits come from the classifier through {node.name()}, which can no longer be read: {reason}"
                ) from None
            if factor is not None:
                return _scaled(self._input(node, number, shape), factor)
            if step is not None:
                number = output if name == "_DDPSink" and input_count(node) > output else 0
                return [term._replace(steps=(*term.steps, step)) for term in self._input(node, number, step.before)]
        self.stops.append(node)
        return []

    def _input(self, node: Any, number: int, shape: torch.Size) -> list[Contribution]:
        parent = input_of(node, number)
        if parent is None:
            self.stops.append(node)
            return []
        return self._terms_of(*parent, shape)

    def _matching(self, records: list[tuple[int, ForwardRecord]]) -> tuple[int, ForwardRecord]:
        """The pass that made the logits among those of one node: several, if one compiled call ran the model twice."""
        own = records
        if len(records) > 1:
            own = [(index, record) for index, record in records if record.address == self._logits.data_ptr()]
        if len(own) != 1:
            times = "once each" if len({index for index, _ in records}) == len(records) else f"{len(records)} times"
            raise ValueError(
                f"one compiled call ran the classifier {times} and these logits {tuple(self._logits.shape)} belong to "
                f"no single output; compile the model without its classifier, or call {EXPLICIT_CALL}"
            )
        return own[0]


def _factor(node: Any) -> tuple[int, float | Tensor | None]:
    """Which input of a product or quotient is scaled, and by what number; None where it is no single number."""
    if operation_name(node) == "Div":
        divisor = _single(saved_factor(node, 0))
        return 0, None if divisor is None else 1 / divisor
    for number in (0, 1):
        factor = None if input_of(node, number) is None else _single(saved_factor(node, number))
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


def _scaled(terms: list[Contribution], factor: float | Tensor) -> list[Contribution]:
    if isinstance(factor, float) and factor == 1:
        return terms
    return [term._replace(factors=(*term.factors, factor)) for term in terms]


_VERIFIED_ROWS, _TOLERANCE = 1024, 0.05


class RecordedFeatures:
    """Features a and weight W of logits z = W a + b.

    Of several classifiers whose outputs are added or averaged, z = s1 (W1 a1 + b1) + s2 (W2 a2 + b2), features and
    scaled weights stand side by side: a = [a1 | a2], W = [s1 W1 | s2 W2]. Of several passes of one classifier, the
    features are averaged.

    Args:
        terms: the passes that the logits are made of.
        classifiers: how many classifiers are recorded.
    """

    def __init__(self, terms: list[Contribution], classifiers: int = 1) -> None:
        self._by_head = [[term for term in terms if term.classifier == index] for index in range(classifiers)]
        missing = sum(not own for own in self._by_head)
        if missing:
            raise ValueError(
                f"the logits are made by {classifiers - missing} of the {classifiers} classifiers that were attached; "
                "pass the one whose output they are as classifier="
            )
        self._first = terms[0]
        self._traced: tuple[TracedFeatures | None] | None = None

    @property
    def strength(self) -> float | None:
        """Lambda of the call that fed the statistics with this pass; None until then. A pass counts once."""
        return self._first.record.strengths.get(self._selection)

    @strength.setter
    def strength(self, value: float) -> None:
        self._first.record.strengths[self._selection] = value

    @property
    def joining(self) -> bool:
        """Whether the pass ran inside the join() of DistributedDataParallel."""
        return self._first.record.joining

    @property
    def weight(self) -> Tensor:
        """The weight W, (C, A) or that of a 1x1 convolution."""
        weights = [_times(own[0].record.weight, _scale(own)) for own in self._by_head]
        return weights[0] if len(weights) == 1 else torch.cat([weight.flatten(1) for weight in weights], 1)

    def rows_for(self, logits: Tensor) -> Tensor | Patches | None:
        """The features in the layout of the logits, (N, A) or (N, A, ...); None where there are none."""
        traced = self._features
        if traced is None:
            return None
        if traced.axis != 1 and not self.has_classes_last(logits):
            raise ValueError(
                f"logits must have their classes in the second or the last dimension, got them in number {traced.axis}"
            )
        if isinstance(traced.features, Patches):
            return traced.features
        return traced.features.movedim(traced.axis, 1)

    def has_classes_last(self, logits: Tensor) -> bool:
        """Whether the classes are the last dimension of logits with three or more, as they are of tokens."""
        return self._features is not None and logits.ndim > 2 and self._features.axis == logits.ndim - 1

    @torch.no_grad()
    def verify(self, logits: Tensor) -> bool:
        """Whether logits are known to be W a + b; raises where they are not. Reads the device.

        What it cannot tell: upsampled logits, sharded weights, dropout in adapters, and a classifier that starts at
        zero.
        """
        traced = self._features
        if traced is None or traced.is_coarse or any(drops_features(own[0].record.head) for own in self._by_head):
            return False
        weight = self.weight
        if hasattr(weight, "full_tensor") or logits.shape[traced.axis] != len(weight):
            return False  # a wrong shape is reported with all others
        dtype = torch.promote_types(logits.dtype, torch.float32)
        given = _rows(logits, traced.axis)[:_VERIFIED_ROWS].to(dtype)
        rows = traced.features[:_VERIFIED_ROWS].dense() if isinstance(traced.features, Patches) else None
        rows = _rows(traced.tensor, traced.axis)[:_VERIFIED_ROWS] if rows is None else rows
        by_head = [(own[0].record.bias, _scale(own)) for own in self._by_head]
        biases = [_times(bias, scale) for bias, scale in by_head if bias is not None]
        with outside_autocast(logits.device):
            expected = F.linear(rows.to(dtype), weight.flatten(1).to(dtype))
            for bias in biases:
                expected = expected + bias.to(dtype)
        error, size = (float(t) for t in torch.stack([(given - expected).norm(), expected.norm()]))
        if error > _TOLERANCE * size:
            share = error / size if size else float("inf")
            heads = " + ".join(str(own[0].record.head) for own in self._by_head)
            raise ValueError(
                f"the logits are not W a + b of the classifier {heads}: they differ from it by {share:.0%}; "
                f"where they are scaled or reordered, call {EXPLICIT_CALL} with features in the order of the logits "
                "and the weight times that scale"
            )
        return size > 0

    @property
    def _selection(self) -> Hashable:
        """Which part of the output of the pass the logits are."""
        return tuple(step.key for step in self._first.steps if step.key is not None)

    @property
    def _features(self) -> TracedFeatures | None:
        """The features, all classifiers side by side; None where the classifier was in eval mode."""
        if self._traced is None:  # not cached_property, whose lock no compiler follows
            self._traced = (self._trace(),)
        return self._traced[0]

    def _trace(self) -> TracedFeatures | None:
        if any(term.record.features is None for own in self._by_head for term in own):
            return None
        traced = [_mean_features(own) for own in self._by_head]
        first = traced[0]
        if len(traced) == 1:
            return first
        if any(part[1:] != first[1:] for part in traced):
            raise ValueError(
                f"classifiers that are added up must have their classes in the same dimension; call {EXPLICIT_CALL}"
            )
        return first._replace(features=torch.cat([part.tensor for part in traced], first.axis))


def _mean_features(terms: list[Contribution]) -> TracedFeatures:
    """The features of one classifier: those of its pass, or the mean over several, weighted as their outputs were."""
    traced = [_replayed(term) for term in terms]
    if len(traced) == 1:
        return traced[0]
    scales = [_product(term.factors) for term in terms]
    total = sum(scales[1:], scales[0])
    parts = [part.tensor * (scale / total) for part, scale in zip(traced, scales, strict=True)]
    return traced[0]._replace(features=sum(parts[1:], parts[0]))


def _replayed(term: Contribution) -> TracedFeatures:
    traced = TracedFeatures(*term.record.features_like(term.shape), term.shape)
    for step in term.steps:
        traced = step(traced)
    return traced


def _scale(terms: list[Contribution]) -> float | Tensor:
    scales = [_product(term.factors) for term in terms]
    return sum(scales[1:], scales[0])


def _product(factors: tuple[float | Tensor, ...]) -> float | Tensor:
    product: float | Tensor = 1.0
    for factor in factors:
        product = product * factor
    return product


def _times(tensor: Tensor, scale: float | Tensor) -> Tensor:
    return tensor if isinstance(scale, float) and scale == 1 else tensor * scale


def _rows(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, -1).flatten(0, -2)


def record_inputs(*heads: nn.Module, model: nn.Module | None = None) -> Recorder:
    """Record the inputs of the classifiers ``heads`` from now on; a recorder they had before is removed.

    ``model`` is the model they are part of; it tells whether a classifier was replaced.
    """
    hooks = []
    for head in heads:
        remove_hooks(head)
        hook = RecordingHook()
        hook.head = weakref.ref(head)
        head.register_forward_hook(hook, with_kwargs=True)
        hooks.append(hook)
    return Recorder(hooks, model)


class Recorder:
    """Finds features and weight by logits.

    Args:
        hooks: one on each classifier, in the order in which their features stand side by side.
        model: what the classifiers are part of, where that is known.
    """

    def __init__(self, hooks: Sequence[RecordingHook], model: nn.Module | None = None) -> None:
        self.hooks = tuple(hooks)
        self._model = None if model is None else weakref.ref(model)
        self._verified = False

    def __reduce__(self) -> tuple[type[Recorder], tuple[tuple[RecordingHook, ...]]]:
        """Copies verify anew; hooks that are copied with their model stay those of the copy."""
        return (Recorder, (self.hooks,))

    @property
    def trains(self) -> bool:
        """Whether a classifier is in training mode now."""
        heads = [None if hook.head is None else hook.head() for hook in self.hooks]
        return any(head.training for head in heads if head is not None)

    def detach(self) -> None:
        """Take the hooks off the classifiers."""
        for hook in self.hooks:
            hook.detach()

    def clear(self) -> None:
        """Drop the passes that wait."""
        for hook in self.hooks:
            hook.clear()

    def take(self, logits: Tensor, *, verify: bool = True) -> RecordedFeatures:
        """What was recorded for ``logits``; the first ones taken are verified."""
        match = self.find(logits, verify=verify)
        if match is None:
            raise self._unknown(logits)
        return match

    def take_weight(self, logits: Tensor, *, verify: bool) -> Tensor:
        """The weight that belongs to ``logits``; without a graph, that of the classifier that ran last."""
        newest = [hook.newest for hook in self.hooks]
        match = self.find(logits, verify=verify)
        if match is not None:
            return match.weight
        if len(newest) > 1 or newest[0] is NO_RECORD:
            raise self._unknown(logits)
        return newest[0].weight

    def current_weight(self, logits: Tensor) -> Tensor:
        """The weight for ``logits`` made by the model as it is now, whether or not their pass was recorded."""
        match = self.find(logits.detach(), verify=False)
        if match is not None:
            return match.weight
        heads = [None if hook.head is None else hook.head() for hook in self.hooks]
        if len(heads) > 1 or heads[0] is None:
            raise self._unknown(logits)
        return weight_of(heads[0])

    def find(self, logits: Tensor, *, verify: bool = True) -> RecordedFeatures | None:
        """Like ``take``, but None for logits without a graph that no recorded pass made: another model's, or copies."""
        if any(hook.retired for hook in self.hooks):
            raise ValueError(
                "logits must come from a model that this criterion is attached to, but another criterion was attached "
                f"to its classifier since; call {EXPLICIT_CALL}"
            )
        waiting = [hook.assign_waiting() for hook in self.hooks]
        match = self._search(logits, waiting, verify=verify)
        if not logits.requires_grad:
            # Passes without a graph may be looked for again: nothing was trained in between.
            for hook, records in zip(self.hooks, waiting, strict=True):
                hook.keep_waiting(records)
        if match is None and logits.requires_grad:
            raise self._unknown(logits)
        if match is not None and verify and not self._verified:
            self._verified = match.verify(logits)
        return match

    def take_recorded(self, logits: Tensor) -> RecordedFeatures:
        """What was recorded for ``logits`` inside the graph that is being compiled, where no trace leads back."""
        if len(self.hooks) > 1:
            raise ValueError(f"several classifiers inside one compiled call cannot be told apart; call {EXPLICIT_CALL}")
        hook = self.hooks[0]
        for record in hook.waiting:
            if record.output is logits or record.is_without_features:
                hook.clear()
                return _single_pass(record, logits)
        raise ValueError(
            "inside torch.compile the logits must be the output of the classifier itself, in the same compiled "
            f"function; call the criterion outside of it, or {EXPLICIT_CALL}"
        )

    def made_last(self, logits: Tensor) -> bool:
        """Whether logits without a graph are, as they are, what a classifier made in its last pass in eval mode."""
        newest = [hook.newest for hook in self.hooks]
        return any((record.shape, record.address) == (logits.shape, logits.data_ptr()) for record in newest)

    def _unknown(self, logits: Tensor) -> ValueError:
        if self._is_replaced():
            return ValueError(
                "the classifier that this criterion was attached to is no longer part of the model; attach a criterion "
                "to the model again after its classifier was replaced"
            )
        hidden = logits.grad_fn is not None and GraphTrace(logits, self.hooks).is_hidden
        message = (
            f"no features were recorded for these logits {shape_of(logits)}: they must come from the model that "
            "this criterion was attached to (a copy of the model needs a criterion of its own)"
        )
        passes = "; a compiled model keeps the features of its last two passes: call the criterion after each pass"
        return ValueError(message + passes if hidden else message)

    def _is_replaced(self) -> bool:
        """Whether a classifier is gone, or is no longer part of the model."""
        heads = [hook.head() for hook in self.hooks if hook.head is not None]
        model = None if self._model is None else self._model()
        if model is None:
            return any(head is None for head in heads)
        parts = {id(part) for part in model.modules()}
        return any(id(head) not in parts for head in heads)

    def _search(self, logits: Tensor, waiting: list[list[ForwardRecord]], *, verify: bool) -> RecordedFeatures | None:
        """Trace the graph of the logits back to the classifiers; without a graph, compare memory addresses."""
        if logits.grad_fn is None:
            matches = [record for records in waiting for record in records if record.produced(logits)]
            return _single_pass(matches[0], logits) if matches and len(self.hooks) == 1 else None
        trace = GraphTrace(logits, self.hooks)
        if not trace.terms and trace.is_hidden and any(waiting):
            if len(self.hooks) > 1:
                raise ValueError(
                    "several classifiers inside one compiled or checkpointed call cannot be told apart; "
                    f"call {EXPLICIT_CALL}"
                )
            match = _single_pass(waiting[0][0], logits)
            if verify:
                match.verify(logits)  # only the values tell whether the logits are of this pass
            return match
        trace.check()
        return RecordedFeatures(trace.terms, len(self.hooks)) if trace.terms else None


def _single_pass(record: ForwardRecord, logits: Tensor) -> RecordedFeatures:
    return RecordedFeatures([Contribution(0, record, logits.shape)])
