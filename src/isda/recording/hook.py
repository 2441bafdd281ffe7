"""A forward hook that ties the inputs of a classifier to the graph of its outputs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from isda.recording.graph import in_backward, in_transform, metadata_of
from isda.recording.record import NOTHING, Record
from isda.recording.sentences import DATA_PARALLEL, SCRIPTED, TENSOR_PARALLEL

__all__ = ["Hook", "remove_hooks"]

_KEY = "isda"


class Hook:
    """A forward hook that ties the input of each pass to the graph of its output.

    The record of a pass hangs on the autograd node of its output and lives as long as that graph. So the features are
    found by the logits they belong to, even when the model ran again in between, and nothing else is kept alive. Where
    the hook sees no node (under torch.compile, without gradients, in reentrant checkpointing) the last two passes wait
    here until the criterion asks.

    Attributes:
        head: a weak reference to the classifier; None in a copy until the copied classifier runs.
        retired: whether the hook was taken off the classifier.
    """

    def __init__(self) -> None:
        self._last = self._before = NOTHING
        self.head: weakref.ref[nn.Module] | None = None
        self.retired = False

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        """Copies and pickles of a model get a hook of their own, without its tensors."""
        return (Hook, ())

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        """Record one forward pass of the classifier."""
        if getattr(head, "_is_replica", False):
            raise ValueError(DATA_PARALLEL)
        if self.retired:  # a compiled model does not notice that a hook is gone
            return
        compiling = torch.compiler.is_compiling()
        if not compiling and in_transform():
            return
        features = args[0] if args else kwargs["input"]
        if not compiling and "DTensor" in (type(features).__name__, type(output).__name__):
            raise ValueError(TENSOR_PARALLEL)
        record = Record(head, features.detach()) if head.training else Record(head)
        if not compiling:
            record.joining = _is_joining()
            if self.head is None:
                self.head = weakref.ref(head)
        if not compiling and output.grad_fn is not None:
            self._hang(record, output.grad_fn)
        elif compiling or not in_backward():
            if head.training:
                record.output = output
            elif not compiling:
                record.shape, record.address = output.shape, output.data_ptr()
            self._before, self._last = self._last, record

    @property
    def __name__(self) -> str:
        """No hook has one: torch.jit.script, which asks for it, gets a sentence."""
        raise AttributeError(SCRIPTED)

    @property
    def newest(self) -> Record:
        """The last pass that waits."""
        return self._last

    def records_on(self, node: Any) -> list[Record]:
        """The passes whose output this node of the graph made."""
        return metadata_of(node).get((_KEY, id(self)), [])

    def settle(self) -> list[Record]:
        """Hang the passes that wait on the graphs they have by now; those without a graph are returned, newest first.

        Must not leave the output on a record that hangs on its graph: that circle would never be freed.
        """
        waiting, loose = (self._last, self._before), []
        self.clear()
        for record in waiting:
            output = record.output
            if output is not None and output.grad_fn is not None:
                record.address, record.output = output.data_ptr(), None
                self._hang(record, output.grad_fn)
            elif record is not NOTHING:
                loose.append(record)
        return loose

    def wait_on(self, loose: list[Record]) -> None:
        """Keep passes without a graph, newest first: somebody may ask for them again."""
        self._last, self._before = (*(record for record in loose if record.is_known), NOTHING, NOTHING)[:2]

    def detach(self) -> None:
        """Take the hook off the classifier."""
        head = None if self.head is None else self.head()
        if head is not None and not self.retired:
            remove_hooks(head)
        self.retire()

    def retire(self) -> None:
        """Record nothing from now on."""
        self.retired = True
        self.clear()

    def clear(self) -> None:
        """Let go of the passes that wait."""
        self._last = self._before = NOTHING

    def _hang(self, record: Record, node: Any) -> None:
        metadata_of(node).setdefault((_KEY, id(self)), []).append(record)


def remove_hooks(head: nn.Module) -> None:
    """Leave no hook of ours on ``head``; those of others stay."""
    for key, hook in list(head._forward_hooks.items()):
        if isinstance(hook, Hook):
            del head._forward_hooks[key]
            head._forward_hooks_with_kwargs.pop(key, None)
            hook.retire()


def _is_joining() -> bool:
    """Whether a DistributedDataParallel that runs right now does so inside its join()."""
    wrapper = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    return wrapper is not None and wrapper._join_config.enable
