"""The inputs of the classifiers of a model, found by the logits they belong to."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor, nn

from isda.checks import shape_of
from isda.recording.following import Term, Trail
from isda.recording.found import Found
from isda.recording.hook import Hook, remove_hooks
from isda.recording.record import NOTHING, Record
from isda.recording.sentences import BY_HAND

__all__ = ["Recorder", "record_inputs"]


def record_inputs(*heads: nn.Module, model: nn.Module | None = None) -> Recorder:
    """Record the inputs of the classifiers ``heads`` from now on, in place of whoever recorded them before.

    ``model`` is what they are the classifiers of; it is asked where a classifier has gone.
    """
    hooks = []
    for head in heads:
        remove_hooks(head)
        hook = Hook()
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

    def __init__(self, hooks: Sequence[Hook], model: nn.Module | None = None) -> None:
        self.hooks = tuple(hooks)
        self._model = None if model is None else weakref.ref(model)
        self._verified = False

    def __reduce__(self) -> tuple[type[Recorder], tuple[tuple[Hook, ...]]]:
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

    def take(self, logits: Tensor, *, verify: bool = True) -> Found:
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
        if len(newest) > 1 or newest[0] is NOTHING:
            raise self._unknown(logits)
        return newest[0].weight

    def find(self, logits: Tensor, *, verify: bool = True) -> Found | None:
        """Like ``take``, but None for logits without a graph that no recorded pass made: another model's, or copies."""
        if any(hook.retired for hook in self.hooks):
            raise ValueError(
                "logits must come from a model that this criterion is attached to, but another criterion was attached "
                f"to its classifier since; call {BY_HAND}"
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
        hidden = logits.grad_fn is not None and Trail(logits, self.hooks).is_hidden
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

    def _search(self, logits: Tensor, loose: list[list[Record]], *, verify: bool) -> Found | None:
        """Follow the graph of the logits back to the classifiers; without a graph, compare places in memory."""
        if logits.grad_fn is None:
            made = [record for records in loose for record in records if record.made(logits)]
            return self._alone(made[0], logits) if made and len(self.hooks) == 1 else None
        trail = Trail(logits, self.hooks)
        if not trail.terms and trail.is_hidden and any(loose):
            if len(self.hooks) > 1:
                raise ValueError(
                    f"several classifiers inside one compiled or checkpointed call cannot be told apart; call {BY_HAND}"
                )
            found = self._alone(loose[0][0], logits)
            if verify:
                found.verify(logits)  # nothing but the values can tell whether it is their pass
            return found
        trail.check()
        return Found(trail.terms, len(self.hooks)) if trail.terms else None

    def _alone(self, record: Record, logits: Tensor) -> Found:
        return Found([Term(0, record, logits.shape)])
