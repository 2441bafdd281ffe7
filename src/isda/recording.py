"""What went into the classifier: a forward hook that ties its inputs to the logits they belong to."""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isda.autocast import outside_autocast
from isda.checks import shape_of

__all__ = ["Record", "Recorder", "in_backward", "record_inputs", "weight_of"]

# What may lie between the classifier's output and the logits that the criterion gets without changing the scale of the
# margins: views, copies, the wrapper of DistributedDataParallel, and upsampling.
_HARMLESS = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Permute|Transpose|T|Squeeze|Unsqueeze|Clone|Alias|ToCopy|_DDPSink|Upsample\w+)"
    r"Backward\d*|torch::autograd::CopyBackwards"
)
# Whole pieces of a model in one node of the graph: reentrant activation checkpointing and torch.compile.
_OPAQUE = ("CheckpointFunctionBackward", "CompiledFunctionBackward")
_LEAF = "torch::autograd::AccumulateGrad"
_KEY = "isda"
_MOST_NODES = 64
_VERIFIED_ROWS, _TOLERANCE = 1024, 0.05
BY_HAND = "criterion(logits, targets, features=..., weight=...)"
DATA_PARALLEL = (
    "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
    "DistributedDataParallel"
)


def weight_of(head: nn.Linear | nn.Conv2d) -> Tensor:
    """The classifier's weight, as it is now: gathered or recomputed by whoever shards or parametrises it."""
    if not parametrize.is_parametrized(head, "weight"):
        return head.weight
    # In training mode every read of a spectrally normalised weight takes a step of the power iteration: not ours.
    parts = list(head.parametrizations.weight.modules())  # type: ignore[union-attr]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        return head.weight
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def record_inputs(head: nn.Linear | nn.Conv2d) -> Recorder:
    """Record the inputs of ``head`` from now on, in place of whoever recorded them before."""
    _remove_recorders(head)
    recorder = Recorder()
    recorder.head = weakref.ref(head)
    head.register_forward_hook(recorder, with_kwargs=True)
    return recorder


def _remove_recorders(head: nn.Module) -> None:
    """Leave no hook of ours on ``head``; those of others stay."""
    for key, hook in list(head._forward_hooks.items()):
        if isinstance(hook, Recorder):
            del head._forward_hooks[key]
            head._forward_hooks_with_kwargs.pop(key, None)
            hook.retire()


class Record:
    """One forward pass of the classifier.

    Attributes:
        head: the classifier.
        features: its input, detached: it keeps no graph alive. None where the classifier was in eval mode.
        output: its output, until a graph leads to this record.
        address: where that output was kept in memory.
        strength: lambda of the call that fed the statistics with this pass; None until then. A pass counts once.
        joining: whether the pass ran inside the join() of DistributedDataParallel, for uneven numbers of batches.
    """

    strength: float | None = None
    joining = False

    def __init__(self, head: Any = None, features: Tensor | None = None, output: Tensor | None = None) -> None:
        self.head, self.features, self.output, self.address = head, features, output, 0
        self._weight = None if features is None else _weight_of_this_pass(head)

    @property
    def weight(self) -> Tensor:
        """The weight of the classifier."""
        return weight_of(self.head) if self._weight is None else self._weight

    def made(self, logits: Tensor) -> bool:
        """Whether logits without a graph are the output of this pass or a view of it: no other tensor lives there."""
        if self.output is None:
            return False
        start = self.output.data_ptr()
        return self.output is logits or 0 < start <= logits.data_ptr() < start + self.output.nbytes

    def rows_for(self, logits: Tensor) -> Tensor | None:
        """The features in the layout of the logits, (N, A) or (N, A, ...); None where there are none."""
        features = self.features
        if features is None:
            return None
        if isinstance(self.head, nn.Linear) and logits.ndim == 2:
            features = features.flatten(0, -2)
        elif isinstance(self.head, nn.Linear):
            features = features.movedim(-1, 1)
        elif logits.ndim == 2:
            features = features.flatten(2).movedim(1, -1).flatten(0, -2)
        if len(features) != len(logits):
            raise ValueError(
                f"the classifier was given {len(features)} samples, but logits has {len(logits)}; where only a part "
                f"of a batch is used, pass the same part of its features: {BY_HAND}"
            )
        return features

    @torch.no_grad()
    def verify(self, logits: Tensor) -> bool:
        """Whether logits are known to be W a + b; raises where they are not. Reads the device.

        What it cannot tell: upsampled logits, sharded weights, and a classifier that starts at zero.
        """
        rows, weight = self.rows_for(logits), self.weight
        if rows is None or rows.shape[2:] != logits.shape[2:] or hasattr(weight, "full_tensor"):
            return False
        if logits.shape[1] != len(weight):
            return False  # reported with all other shapes
        dtype = torch.promote_types(logits.dtype, torch.float32)
        rows, given = (t.movedim(1, -1).flatten(0, -2)[:_VERIFIED_ROWS].to(dtype) for t in (rows, logits))
        bias = None if self.head.bias is None else self.head.bias.to(dtype)
        with outside_autocast(logits.device):
            expected = F.linear(rows, weight.flatten(1).to(dtype), bias)
        error, size = (float(t) for t in torch.stack([(given - expected).norm(), expected.norm()]))
        if error > _TOLERANCE * size:
            share = error / size if size else float("inf")
            raise ValueError(
                f"the logits are not W a + b of the classifier {self.head}: they differ from it by {share:.0%}; "
                f"where they are scaled or reordered, call {BY_HAND} with features in the order of the logits and the "
                "weight times that scale"
            )
        return size > 0


def _weight_of_this_pass(head: nn.Module) -> Tensor | None:
    """The weight that the hooks of torch.nn.utils.weight_norm make for every pass; other heads show theirs any time."""
    if "weight" in head._parameters or parametrize.is_parametrized(head, "weight"):
        return None
    return head.weight  # type: ignore[return-value]


_NOTHING = Record()


class Recorder:
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
        self._last = self._before = _NOTHING
        self._verified = False
        self.head: weakref.ref[nn.Module] | None = None
        self.retired = False

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        """Copies and pickles of a model get a recorder of their own, without its tensors."""
        return (Recorder, ())

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        """Record one forward pass of the classifier."""
        if getattr(head, "_is_replica", False):
            raise ValueError(DATA_PARALLEL)
        if self.retired:  # a compiled model does not notice that a hook is gone
            return
        features = args[0] if args else kwargs["input"]
        record = Record(head, features.detach()) if head.training else Record(head)
        compiling = torch.compiler.is_compiling()
        if not compiling:
            record.joining = _is_joining()
            if self.head is None:
                self.head = weakref.ref(head)
        if not compiling and output.grad_fn is not None:
            self._hang(record, output.grad_fn)
        elif compiling or not in_backward():
            if head.training:
                record.output = output
            self._before, self._last = self._last, record

    def detach(self) -> None:
        """Take the hook off the classifier."""
        head = None if self.head is None else self.head()
        if head is not None and not self.retired:
            _remove_recorders(head)
        self.retire()

    def retire(self) -> None:
        """Record nothing from now on."""
        self.retired = True
        self.clear()

    def clear(self) -> None:
        """Let go of the passes that wait."""
        self._last = self._before = _NOTHING

    def take(self, logits: Tensor, *, verify: bool = True) -> Record:
        """The record of the pass that made ``logits``; the first one taken is verified."""
        record = self.find(logits, verify=verify)
        if record is None:
            raise self._unknown(logits)
        return record

    def take_weight(self, logits: Tensor, *, verify: bool = True) -> Tensor:
        """The weight that belongs to ``logits``; without a graph, that of the classifier that ran last."""
        newest = self._last
        record = self.find(logits, verify=verify)
        if record is None and newest is _NOTHING:
            raise self._unknown(logits)
        return (record or newest).weight

    def find(self, logits: Tensor, *, verify: bool = True) -> Record | None:
        """Like ``take``, but None for logits without a graph that no recorded pass made: another model's, or copies."""
        if self.retired:
            raise ValueError(
                "logits must come from a model that this criterion is attached to, but another criterion was attached "
                f"to its classifier since; call {BY_HAND}"
            )
        loose = self._settle()
        record = self._search(logits, loose, verify=verify)
        if not logits.requires_grad:
            # Somebody may ask for the passes without a graph again: nothing was trained in between.
            self._last, self._before = (*(r for r in loose if r.output is not None), _NOTHING, _NOTHING)[:2]
        if record is None and logits.requires_grad:
            raise self._unknown(logits)
        if record is not None and verify and not self._verified:
            self._verified = record.verify(logits)
        return record

    def _unknown(self, logits: Tensor) -> ValueError:
        return ValueError(
            f"no features were recorded for these logits {shape_of(logits)}: they must come from the model that "
            "this criterion was attached to (a copy of the model needs a criterion of its own)"
        )

    def _hang(self, record: Record, node: Any) -> None:
        _metadata(node).setdefault((_KEY, id(self)), []).append(record)

    def _settle(self) -> list[Record]:
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
            elif record is not _NOTHING:
                loose.append(record)
        return loose

    def _search(self, logits: Tensor, loose: list[Record], *, verify: bool) -> Record | None:
        """Walk from the logits back to the classifier's output through operations that leave margins alone."""
        if logits.grad_fn is None:
            return next((record for record in loose if record.made(logits)), None)
        key, stops = (_KEY, id(self)), []
        for node in _walk(logits.grad_fn, stop=_changes_margins):
            if key in _metadata(node):
                return _pick(_metadata(node)[key], logits)
            if _changes_margins(node) or node.name() in _OPAQUE:
                stops.append(node)
        if loose and any(node.name() in _OPAQUE for node in stops):
            if verify:
                loose[0].verify(logits)  # nothing but the values can tell whether it is their pass
            return loose[0]
        for stop in stops:
            if any(key in _metadata(node) for node in _walk(stop)):
                raise ValueError(
                    f"the logits come from the classifier through {stop.name()}, which may scale, mix or drop them; "
                    f"call {BY_HAND} with the features that belong to these logits and the weight times that scale"
                )
        return None


def _is_joining() -> bool:
    """Whether a DistributedDataParallel that runs right now does so inside its join()."""
    wrapper = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    return wrapper is not None and wrapper._join_config.enable


def in_backward() -> bool:
    """Whether autograd is running a backward pass right now: a forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _metadata(node: Any) -> dict[Any, Any]:
    """The dictionary that every node of the autograd graph carries."""
    return node.metadata  # the type stubs call it a method


def _changes_margins(node: Any) -> bool:
    return _HARMLESS.fullmatch(node.name()) is None and node.name() not in _OPAQUE


def _walk(start: Any, stop: Callable[[Any], bool] = lambda node: False) -> Iterator[Any]:
    """Nodes from ``start`` towards the inputs, breadth first, not beyond those where ``stop`` holds."""
    waiting, seen = deque([start]), 0
    while waiting and seen < _MOST_NODES:
        node = waiting.popleft()
        seen += 1
        yield node
        if not stop(node):
            waiting.extend(parent for parent, _ in node.next_functions if parent is not None and parent.name() != _LEAF)


def _pick(records: list[Record], logits: Tensor) -> Record:
    """The pass that made ``logits`` among those of one node: several, if one compiled call ran the model twice."""
    own = records if len(records) == 1 else [record for record in records if record.address == logits.data_ptr()]
    if len(own) != 1:
        raise ValueError(
            f"one compiled call ran the classifier {len(records)} times and these logits {shape_of(logits)} belong to "
            f"neither output; call {BY_HAND}"
        )
    return own[0]
