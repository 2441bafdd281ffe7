"""Forward hook that records the inputs of a classifier.

Weight, bias and sizes of a linear layer or convolution (with LoRA), the record of one forward pass, and the hook
that ties records to the autograd graph of the outputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isda.attach.autograd_compat import (
    in_backward,
    in_transform,
    is_joining,
    is_replica,
    metadata_of,
    pop_forward_hooks,
)
from isda.functional.patches import Patches

EXPLICIT_CALL = "criterion(logits, targets, features=..., weight=...)"
DATA_PARALLEL_ERROR = (
    "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
    "DistributedDataParallel"
)
SCRIPT_ERROR = (
    "torch.jit.script cannot compile a model that a criterion is attached to; call criterion.detach() first and attach "
    "again afterwards, or use torch.compile"
)
TENSOR_PARALLEL_ERROR = (
    "the classifier must not be split by tensor parallelism, because its input and output are DTensors; leave it out "
    f"of the plan of parallelize_module, or call {EXPLICIT_CALL} with whole tensors (full_tensor())"
)


def base_of(head: nn.Module) -> nn.Linear | nn.Conv2d:
    """The layer itself, without the adapters that peft has put around it."""
    while _is_adapted(head):
        head = head.base_layer  # type: ignore[assignment]
    return head  # type: ignore[return-value]


def is_layer(module: nn.Module) -> bool:
    """Whether it is a linear layer or an ungrouped convolution, with LoRA or without."""
    base = base_of(module)
    return isinstance(base, nn.Linear) or (isinstance(base, nn.Conv2d) and base.groups == 1)


def is_pointwise(head: nn.Module) -> bool:
    """Whether it is a linear layer, or a convolution whose pixels see one pixel of the input each."""
    base = base_of(head)
    if isinstance(base, nn.Linear):
        return True
    return base.kernel_size == (1, 1) and base.stride == (1, 1) and not any(base._reversed_padding_repeated_twice)


def sizes_of(head: nn.Module) -> tuple[int, int]:
    """C and A of a classifier; A is A k k for a k x k convolution. They do not depend on how the weight is sharded."""
    base = base_of(head)
    if isinstance(base, nn.Linear):
        return base.out_features, base.in_features
    return base.out_channels, base.in_channels * base.kernel_size[0] * base.kernel_size[1]


def weight_of(head: nn.Module) -> Tensor:
    """The classifier's weight, as it is now: gathered or recomputed if it is sharded or parametrised.

    (C, A), or (C, A, 1, 1) of a 1x1 convolution; (C, A k k) of a larger one. With LoRA it is W + s B A, and its
    gradient reaches the factors.
    """
    base = base_of(head)
    weight = _plain_weight(base)
    for adapter in _active_adapters(head):
        down, up = head.lora_A[adapter].weight, head.lora_B[adapter].weight  # type: ignore[union-attr,index]
        update = (up.flatten(1) @ down.flatten(1)).view(weight.shape)
        weight = weight + head.scaling[adapter] * update.to(weight.dtype)  # type: ignore[index]
    return weight if is_pointwise(base) else weight.flatten(1)


def bias_of(head: nn.Module) -> Tensor | None:
    """The classifier's bias (C,), as it is now, or None."""
    bias = base_of(head).bias
    for adapter in _active_adapters(head):
        more = head.lora_B[adapter].bias  # type: ignore[union-attr,index]
        if more is not None:
            more = head.scaling[adapter] * more  # type: ignore[index]
            bias = more if bias is None else bias + more
    return bias


def features_of(head: nn.Module, inputs: Tensor) -> Tensor | Patches:
    """What the weight multiplies, in the layout of the input; patches of it for a convolution that sees more."""
    return inputs if is_pointwise(head) else Patches.seen_by(base_of(head), inputs)  # type: ignore[arg-type]


def drops_features(head: nn.Module) -> bool:
    """Whether adapters of this classifier see their input through dropout, so that W + s B A holds on average only."""
    return head.training and any(
        getattr(head.lora_dropout[adapter], "p", 0) > 0  # type: ignore[index]
        for adapter in _active_adapters(head)
    )


def is_product(head: nn.Module) -> bool:
    """Whether the output is W a + b, W as ``weight_of`` has it. A layer with a forward of its own is tried out."""
    if not is_layer(head):
        return False
    if _is_adapted(head):
        return not getattr(head, "lora_variant", {}) and not _is_adapted(head.base_layer) and is_product(base_of(head))
    # Parametrised layers (weight norm) are subclasses made on the fly, with the forward of what they wrap.
    if "forward" not in vars(head) and type(head).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    if not set(head._parameters) <= {"weight", "bias"}:
        return False
    return _computes_product(head)  # type: ignore[arg-type]


def _computes_product(head: nn.Linear | nn.Conv2d) -> bool:
    product: Callable[..., Tensor]
    if isinstance(head, nn.Linear):
        shape, product = [4, head.in_features], F.linear
    else:
        shape, product = [2, head.in_channels, *(2 * size for size in head.kernel_size)], head._conv_forward
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(head.weight)
    with torch.no_grad():
        expected = product(rows, head.weight, head.bias)
        try:
            output: Any = head.forward(rows)
        except (RuntimeError, TypeError, ValueError):
            return False
    return isinstance(output, Tensor) and output.shape == expected.shape and torch.allclose(output, expected, rtol=0.01)


def _is_adapted(module: Any) -> bool:
    """Whether it is a layer with LoRA as peft makes them."""
    return hasattr(module, "lora_A") and isinstance(getattr(module, "base_layer", None), nn.Module)


def _active_adapters(head: Any) -> list[str]:
    """The adapters that are added to what the layer itself computes."""
    if not _is_adapted(head) or head.disable_adapters or head.merged:
        return []
    return [name for name in head.active_adapters if name in head.lora_A]


def _plain_weight(layer: nn.Linear | nn.Conv2d) -> Tensor:
    if not parametrize.is_parametrized(layer, "weight"):
        return layer.weight
    # In training mode every read of a spectrally normalised weight takes a step of the power iteration.
    parts = list(layer.parametrizations.weight.modules())  # type: ignore[union-attr]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        return layer.weight
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


class ForwardRecord:
    """One forward pass of the classifier.

    Attributes:
        head: the classifier.
        features: its input, detached: it keeps no graph alive. None where the classifier was in eval mode.
        output: its output, until a graph leads to this record.
        address: where that output was kept in memory.
        shape: the shape of that output, where it is not kept.
        joining: whether the pass ran inside the join() of DistributedDataParallel, for uneven numbers of batches.
    """

    joining = False
    address = 0
    shape: torch.Size | None = None
    _strengths: dict[Hashable, float] | None = None

    def __init__(self, head: Any = None, features: Tensor | None = None, output: Tensor | None = None) -> None:
        self.head, self.features, self.output = head, features, output
        self._weight, self._bias = (None, None) if features is None else _parameters_of_this_pass(head)

    @property
    def weight(self) -> Tensor:
        """The weight of the classifier."""
        return weight_of(self.head) if self._weight is None else self._weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the classifier."""
        return bias_of(self.head) if self._weight is None else self._bias

    @property
    def strengths(self) -> dict[Hashable, float]:
        """Lambda of the calls that fed the statistics with this pass, by the part of it that they used."""
        if self._strengths is None:
            self._strengths = {}
        return self._strengths

    @property
    def is_known(self) -> bool:
        """Whether logits without a graph can still be recognised as its output."""
        return self.output is not None or self.shape is not None

    @property
    def is_without_features(self) -> bool:
        """Whether the classifier ran in eval mode."""
        return self.head is not None and self.features is None

    def produced(self, logits: Tensor) -> bool:
        """Whether logits without a graph are the output of this pass or a view of it: no other tensor lives there."""
        if self.output is None:
            return False
        start = self.output.data_ptr()
        return self.output is logits or 0 < start <= logits.data_ptr() < start + self.output.nbytes

    def features_like(self, shape: torch.Size) -> tuple[Tensor | Patches, int]:
        """The features in the layout of logits of this shape, and which of their dimensions is A."""
        if self.features is None:
            raise ValueError("the classifier must be in training mode to record its input, got eval mode")
        features = features_of(self.head, self.features)
        if isinstance(features, Tensor) and isinstance(base_of(self.head), nn.Linear):
            if shape == (*features.shape[:-1], sizes_of(self.head)[0]):
                return features, len(shape) - 1
            features = features.flatten(0, -2) if len(shape) == 2 else features.movedim(-1, 1)
        elif len(shape) == 2:
            features = features.dense() if isinstance(features, Patches) else features.movedim(1, -1).flatten(0, -2)
        samples = features.samples if isinstance(features, Patches) else len(features)
        if samples != shape[0]:
            raise ValueError(
                f"the classifier was given {samples} samples, but logits has {shape[0]}; where only a part "
                f"of a batch is used, pass the same part of its features: {EXPLICIT_CALL}"
            )
        return features, 1


def _parameters_of_this_pass(head: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias that exist during a pass only; (None, None) for classifiers that show theirs at any time.

    The hooks of torch.nn.utils.weight_norm make a weight for every pass. FullyShardedDataParallel shows a part of a
    larger tensor that it frees after the pass: a copy of it stays, and passes its gradient on.
    """
    layer = base_of(head)
    if parametrize.is_parametrized(layer, "weight"):
        return None, None
    if isinstance(layer._parameters.get("weight"), nn.Parameter):
        return None, None
    weight, bias = weight_of(head), bias_of(head)
    if weight._is_view():
        weight, bias = weight.clone(), None if bias is None else bias.clone()
    return weight, bias


NO_RECORD = ForwardRecord()


_KEY = "isda"


class RecordingHook:
    """A forward hook that ties the input of each pass to the graph of its output.

    The record of a pass is attached to the autograd node of its output and lives as long as that graph. So the features
    are found by the logits they belong to, even when the model ran again in between, and nothing else is kept alive.
    Where the hook sees no node (under torch.compile, without gradients, in reentrant checkpointing) the last two passes
    are kept here until the criterion looks for them.

    Attributes:
        head: a weak reference to the classifier; None in a copy until the copied classifier runs.
        retired: whether the hook was taken off the classifier.
    """

    def __init__(self) -> None:
        self._last = self._before = NO_RECORD
        self.head: weakref.ref[nn.Module] | None = None
        self.retired = False

    def __reduce__(self) -> tuple[type[RecordingHook], tuple[()]]:
        """Copies and pickles of a model get a hook of their own, without its tensors."""
        return (RecordingHook, ())

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        """Record one forward pass of the classifier."""
        if is_replica(head):
            raise ValueError(DATA_PARALLEL_ERROR)
        if self.retired:  # a compiled model does not notice that a hook is gone
            return
        compiling = torch.compiler.is_compiling()
        if not compiling and in_transform():
            return
        features = args[0] if args else kwargs["input"]
        if not compiling and "DTensor" in (type(features).__name__, type(output).__name__):
            raise ValueError(TENSOR_PARALLEL_ERROR)
        record = ForwardRecord(head, features.detach()) if head.training else ForwardRecord(head)
        if not compiling:
            record.joining = is_joining()
            if self.head is None:
                self.head = weakref.ref(head)
        if not compiling and output.grad_fn is not None:
            self._attach_record(record, output.grad_fn)
        elif compiling or not in_backward():
            if head.training:
                record.output = output
            elif not compiling:
                record.shape, record.address = output.shape, output.data_ptr()
            self._before, self._last = self._last, record

    @property
    def __name__(self) -> str:
        """Not defined: torch.jit.script reads it, and gets an error that says what to do."""
        raise AttributeError(SCRIPT_ERROR)

    @property
    def newest(self) -> ForwardRecord:
        """The last pass that waits."""
        return self._last

    @property
    def waiting(self) -> tuple[ForwardRecord, ForwardRecord]:
        """The last two passes that wait, newest first."""
        return self._last, self._before

    def records_on(self, node: Any) -> list[ForwardRecord]:
        """The passes whose output this node of the graph made."""
        return metadata_of(node).get((_KEY, id(self)), [])

    def assign_waiting(self) -> list[ForwardRecord]:
        """Attach waiting passes to the graphs they have by now; those without a graph are returned, newest first.

        A record that is attached to its graph must not hold its output: that reference cycle would never be freed.
        """
        waiting, without_graph = (self._last, self._before), []
        self.clear()
        for record in waiting:
            output = record.output
            if output is not None and output.grad_fn is not None:
                record.address, record.output = output.data_ptr(), None
                self._attach_record(record, output.grad_fn)
            elif record is not NO_RECORD:
                without_graph.append(record)
        return without_graph

    def keep_waiting(self, records: list[ForwardRecord]) -> None:
        """Keep passes without a graph, newest first, for the next search."""
        self._last, self._before = (*(record for record in records if record.is_known), NO_RECORD, NO_RECORD)[:2]

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
        """Drop the passes that wait."""
        self._last = self._before = NO_RECORD

    def _attach_record(self, record: ForwardRecord, node: Any) -> None:
        metadata_of(node).setdefault((_KEY, id(self)), []).append(record)


def remove_hooks(head: nn.Module) -> None:
    """Remove the recording hooks from ``head``; other hooks stay."""
    for hook in pop_forward_hooks(head, RecordingHook):
        hook.retire()
