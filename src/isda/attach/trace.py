"""From logits back to the recorded features: the autograd graph is traced to the forward passes of the classifiers,
and features and weight are returned such that logits = W a + b.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils.checks import shape_of
from isda._utils.devices import outside_autocast
from isda.attach.autograd_compat import LEAF, is_opaque, nearest_nodes, operation_name
from isda.attach.hook import EXPLICIT_CALL, NO_RECORD, ForwardRecord, RecordingHook, drops_features, remove_hooks
from isda.attach.operations import TracedFeatures, TracedOperation, operation_of, stacked_inputs
from isda.functional.patches import Patches

_MOST_NODES = 64


class Contribution(NamedTuple):
    """One pass of one classifier, and how it entered the logits.

    Attributes:
        position: which of the classifiers.
        record: of the pass.
        shape: of the classifier's output.
        factors: what the output was multiplied by.
        steps: what happened to its places and samples, in turn.
    """

    position: int
    record: ForwardRecord
    shape: torch.Size
    factors: tuple[float | Tensor, ...] = ()
    steps: tuple[TracedOperation, ...] = ()


class GraphTrace:
    """Where the graph of some logits leads to.

    Attributes:
        terms: the passes whose outputs, scaled and moved, the logits are the sum of.
        stops: nodes beyond which nothing linear was found.
    """

    def __init__(self, logits: Tensor, hooks: Sequence[RecordingHook]) -> None:
        self._hooks, self._logits, self._left = hooks, logits, _MOST_NODES
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
        return [(place, record) for place, hook in enumerate(self._hooks) for record in hook.records_on(node)]

    def _terms_of(self, node: Any, place: int, shape: torch.Size) -> list[Contribution]:
        """The terms of output number ``place`` of a node; nodes that lead nowhere are kept in ``stops``."""
        self._left -= 1
        if records := self._records_on(node):
            position, record = self._one_of(records)
            return [Contribution(position, record, shape)]
        kind = operation_name(node)
        if self._left > 0 and not is_opaque(node):
            if kind in ("Add", "Sub"):
                alpha = node._saved_alpha if kind == "Add" else -node._saved_alpha
                first, second = (self._input(node, number, shape) for number in (0, 1))
                return first + _scaled(second, float(alpha))
            if (stacked := stacked_inputs(node)) is not None:
                stack, share = stacked
                parts = [self._input(stack, number, shape) for number in range(len(stack.next_functions))]
                return [term for part in parts for term in _scaled(part, share)]
            try:
                number, factor = _factor(node) if kind in ("Mul", "Div") else (0, None)
                step = operation_of(node, place, shape)
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

    def _input(self, node: Any, number: int, shape: torch.Size) -> list[Contribution]:
        parent, place = node.next_functions[number] if number < len(node.next_functions) else (None, 0)
        if parent is None or parent.name() == LEAF:
            self.stops.append(node)
            return []
        return self._terms_of(parent, place, shape)

    def _one_of(self, records: list[tuple[int, ForwardRecord]]) -> tuple[int, ForwardRecord]:
        """The pass that made the logits among those of one node: several, if one compiled call ran the model twice."""
        own = records
        if len(records) > 1:
            own = [(place, record) for place, record in records if record.address == self._logits.data_ptr()]
        if len(own) != 1:
            times = "once each" if len({place for place, _ in records}) == len(records) else f"{len(records)} times"
            raise ValueError(
                f"one compiled call ran the classifier {times} and these logits {tuple(self._logits.shape)} belong to "
                f"no single output; compile the model without its classifier, or call {EXPLICIT_CALL}"
            )
        return own[0]


def _factor(node: Any) -> tuple[int, float | Tensor | None]:
    """Which input of a product or quotient is scaled, and by what number; None where it is no single number."""
    if operation_name(node) == "Div":
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
        self._by_head = [[term for term in terms if term.position == place] for place in range(classifiers)]
        missing = sum(not own for own in self._by_head)
        if missing:
            raise ValueError(
                f"the logits are made by {classifiers - missing} of the {classifiers} classifiers that were attached; "
                "pass the one whose output they are as classifier="
            )
        self._first = terms[0]

    @property
    def strength(self) -> float | None:
        """Lambda of the call that fed the statistics with this pass; None until then. A pass counts once."""
        return self._first.record.strengths.get(self._part)

    @strength.setter
    def strength(self, value: float) -> None:
        self._first.record.strengths[self._part] = value

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
        place = self._place
        if place is None:
            return None
        if place.axis != 1 and not self.has_classes_last(logits):
            raise ValueError(
                f"logits must have their classes in the second or the last dimension, got them in number {place.axis}"
            )
        if isinstance(place.features, Patches):
            return place.features
        return place.features.movedim(place.axis, 1)

    def has_classes_last(self, logits: Tensor) -> bool:
        """Whether the classes are the last dimension of logits with three or more, as they are of tokens."""
        return self._place is not None and logits.ndim > 2 and self._place.axis == logits.ndim - 1

    @torch.no_grad()
    def verify(self, logits: Tensor) -> bool:
        """Whether logits are known to be W a + b; raises where they are not. Reads the device.

        What it cannot tell: upsampled logits, sharded weights, dropout in adapters, and a classifier that starts at
        zero.
        """
        place = self._place
        if place is None or place.is_coarse or any(drops_features(own[0].record.head) for own in self._by_head):
            return False
        weight = self.weight
        if hasattr(weight, "full_tensor") or logits.shape[place.axis] != len(weight):
            return False  # a wrong shape is reported with all others
        dtype = torch.promote_types(logits.dtype, torch.float32)
        given = _rows(logits, place.axis)[:_VERIFIED_ROWS].to(dtype)
        rows = place.features[:_VERIFIED_ROWS].dense() if isinstance(place.features, Patches) else None
        rows = _rows(place.tensor, place.axis)[:_VERIFIED_ROWS] if rows is None else rows
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
    def _part(self) -> Hashable:
        """Which part of the pass the logits are."""
        return tuple(step.key for step in self._first.steps if step.key is not None)

    @cached_property
    def _place(self) -> TracedFeatures | None:
        """The features, all classifiers side by side; None where the classifier was in eval mode."""
        if any(term.record.features is None for own in self._by_head for term in own):
            return None
        places = [_mean_features(own) for own in self._by_head]
        first = places[0]
        if len(places) == 1:
            return first
        if any(place[1:] != first[1:] for place in places):
            raise ValueError(
                f"classifiers that are added up must have their classes in one place; call {EXPLICIT_CALL}"
            )
        return first._replace(features=torch.cat([place.tensor for place in places], first.axis))


def _mean_features(terms: list[Contribution]) -> TracedFeatures:
    """The features of one classifier: those of its pass, or the mean over several, weighted as their outputs were."""
    places = [_replayed(term) for term in terms]
    if len(places) == 1:
        return places[0]
    scales = [_product(term.factors) for term in terms]
    total = sum(scales[1:], scales[0])
    parts = [place.tensor * (scale / total) for place, scale in zip(places, scales, strict=True)]
    return places[0]._replace(features=sum(parts[1:], parts[0]))


def _replayed(term: Contribution) -> TracedFeatures:
    place = TracedFeatures(*term.record.laid_out(term.shape), term.shape)
    for step in term.steps:
        place = step(place)
    return place


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
    """Record the inputs of the classifiers ``heads`` from now on, in place of whoever recorded them before.

    ``model`` is what they are the classifiers of; it is asked where a classifier has gone.
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

    def detach(self) -> None:
        """Take the hooks off the classifiers."""
        for hook in self.hooks:
            hook.detach()

    def clear(self) -> None:
        """Let go of the passes that wait."""
        for hook in self.hooks:
            hook.clear()

    def take(self, logits: Tensor, *, verify: bool = True) -> RecordedFeatures:
        """What was recorded for ``logits``; the first ones taken are verified."""
        found = self.find(logits, verify=verify)
        if found is None:
            raise self._unknown(logits)
        return found

    def take_weight(self, logits: Tensor, *, verify: bool = True) -> Tensor:
        """The weight that belongs to ``logits``; without a graph, that of the classifier that ran last."""
        newest = [hook.newest for hook in self.hooks]
        found = self.find(logits, verify=verify)
        if found is not None:
            return found.weight
        if len(newest) > 1 or newest[0] is NO_RECORD:
            raise self._unknown(logits)
        return newest[0].weight

    def find(self, logits: Tensor, *, verify: bool = True) -> RecordedFeatures | None:
        """Like ``take``, but None for logits without a graph that no recorded pass made: another model's, or copies."""
        if any(hook.retired for hook in self.hooks):
            raise ValueError(
                "logits must come from a model that this criterion is attached to, but another criterion was attached "
                f"to its classifier since; call {EXPLICIT_CALL}"
            )
        loose = [hook.settle() for hook in self.hooks]
        found = self._search(logits, loose, verify=verify)
        if not logits.requires_grad:
            # Somebody may ask for the passes without a graph again: nothing was trained in between.
            for hook, records in zip(self.hooks, loose, strict=True):
                hook.wait_on(records)
        if found is None and logits.requires_grad:
            raise self._unknown(logits)
        if found is not None and verify and not self._verified:
            self._verified = found.verify(logits)
        return found

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

    def _search(self, logits: Tensor, loose: list[list[ForwardRecord]], *, verify: bool) -> RecordedFeatures | None:
        """Follow the graph of the logits back to the classifiers; without a graph, compare places in memory."""
        if logits.grad_fn is None:
            made = [record for records in loose for record in records if record.made(logits)]
            return self._alone(made[0], logits) if made and len(self.hooks) == 1 else None
        trail = GraphTrace(logits, self.hooks)
        if not trail.terms and trail.is_hidden and any(loose):
            if len(self.hooks) > 1:
                raise ValueError(
                    "several classifiers inside one compiled or checkpointed call cannot be told apart; "
                    f"call {EXPLICIT_CALL}"
                )
            found = self._alone(loose[0][0], logits)
            if verify:
                found.verify(logits)  # nothing but the values can tell whether it is their pass
            return found
        trail.check()
        return RecordedFeatures(trail.terms, len(self.hooks)) if trail.terms else None

    def _alone(self, record: ForwardRecord, logits: Tensor) -> RecordedFeatures:
        return RecordedFeatures([Contribution(0, record, logits.shape)])
