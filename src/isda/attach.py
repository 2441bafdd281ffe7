"""Adopt ISDA in a model you did not write: find its classifier and record what goes into it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isda.checks import shape_of

# Where the field keeps the last layer: torchvision (fc, classifier, head, heads), Hugging Face (classifier, score).
_CONVENTIONS = ("fc", "classifier", "head", "heads", "score")

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
_BY_HAND = "criterion(logits, targets, features=..., weight=...)"
_DATA_PARALLEL = (
    "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
    "DistributedDataParallel"
)


# -- which layer is the classifier -------------------------------------------------------------------------------------


def find_classifier(model: nn.Module, classifier: nn.Module | str | None = None) -> nn.Linear | nn.Conv2d:
    """The last layer of a classification or segmentation model.

    Looked for, in this order: the argument; ``model.get_classifier()`` (timm and isda's own networks); the attributes
    fc, classifier, head, heads, score (torchvision, Hugging Face), and in a container the last linear layer in it; the
    last layer of an nn.Sequential; the model itself. Wrappers (DistributedDataParallel, torch.compile) are looked
    through.

    Raises:
        ValueError: nothing was found, or several, or what was found computes something other than W a + b.

    Example:
        >>> find_classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        Linear(in_features=8, out_features=3, bias=True)
    """
    if isinstance(model, nn.DataParallel):
        raise ValueError(_DATA_PARALLEL)
    model = _unwrap(model)
    if isinstance(classifier, str):
        try:
            named = model.get_submodule(classifier)
        except AttributeError:
            message = f"classifier must name a layer of the model, got {classifier!r}{_candidates(model)}"
            raise ValueError(message) from None
        return _checked(named, f"classifier {classifier!r}")
    if classifier is not None:
        if not any(module is classifier for module in model.modules()):
            raise ValueError(f"classifier must be a layer of the model, got another {type(classifier).__name__}")
        return _checked(classifier, "classifier")
    if callable(getattr(model, "get_classifier", None)):
        return _checked(model.get_classifier(), "model.get_classifier()")  # type: ignore[operator]
    parts = {name: getattr(model, name, None) for name in _CONVENTIONS}
    found = {name: _last_layer(part) for name, part in parts.items() if isinstance(part, nn.Module)}
    found = {name: layer for name, layer in found.items() if layer is not None}
    if len(found) > 1:
        names = " and ".join(f"model.{name}" for name in found)
        raise ValueError(f"{names} both look like the classifier; pass classifier=<layer or name>{_candidates(model)}")
    for name, layer in found.items():
        return _checked(layer, f"model.{name}")
    if isinstance(model, nn.Sequential) or _is_linear(model):
        layer = _last_layer(model)
        if layer is not None:
            return _checked(layer, "the last layer of the Sequential")
    looked = "get_classifier(), " + ", ".join(_CONVENTIONS)
    raise ValueError(
        f"no classifier found in {type(model).__name__}: looked for {looked} and an nn.Sequential; pass "
        f"classifier=<layer or name>{_candidates(model)}"
    )


def _unwrap(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))


def _last_layer(module: nn.Module) -> nn.Module | None:
    return next((part for part in reversed(list(module.modules())) if _is_linear(part)), None)


def _candidates(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and _is_linear(module)][-5:]
    return f"; its last linear layers are {', '.join(names)}" if names else "; it has no linear layer"


def _checked(head: Any, what: str) -> nn.Linear | nn.Conv2d:
    """Refuse heads whose output is not exactly W a + b with the W that they show."""
    if isinstance(head, (tuple, list)):
        raise ValueError(f"{what} has {len(head)} classifiers; pass the one to use as classifier=")
    if isinstance(head, nn.Identity):
        raise ValueError(f"{what} is an nn.Identity: the model has no classifier (num_classes=0?)")
    if not (_is_linear(head) and _computes_product(head)):
        raise ValueError(
            f"{what} must be an nn.Linear or a 1x1 nn.Conv2d, got {type(head).__name__}; for a head that normalises or "
            f"scales, call {_BY_HAND} with the weight that multiplies the features, scale included"
        )
    return head


def _computes_product(head: nn.Linear | nn.Conv2d) -> bool:
    """Whether the output is W a + b. A layer with a forward of its own (timm has some) is tried out."""
    if isinstance(head, nn.Conv2d) and not (head.groups == 1 and head.padding == (0, 0)):
        return False
    # Parametrised layers (weight norm) are subclasses made on the fly, with the forward of what they wrap.
    if "forward" not in vars(head) and type(head).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    if not set(head._parameters) <= {"weight", "bias"}:
        return False
    shape = (4, *head.weight.shape[1:])
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(head.weight)
    product = F.linear if isinstance(head, nn.Linear) else F.conv2d
    with torch.no_grad():
        expected = product(rows, head.weight, head.bias)
        try:
            output = head.forward(rows)
        except (RuntimeError, TypeError, ValueError):
            return False
    return isinstance(output, Tensor) and output.shape == expected.shape and torch.allclose(output, expected, rtol=0.01)


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


# -- what went into it -------------------------------------------------------------------------------------------------


def record_inputs(head: nn.Linear | nn.Conv2d) -> Recorder:
    """Record the inputs of ``head`` from now on."""
    recorder = Recorder()
    head.register_forward_hook(recorder, with_kwargs=True)
    return recorder


class Record:
    """One forward pass of the classifier.

    Attributes:
        head: the classifier.
        features: its input, detached: it keeps no graph alive. None where the classifier was in eval mode.
        output: its output, until a graph leads to this record.
        address: where that output was kept in memory.
    """

    def __init__(self, head: Any = None, features: Tensor | None = None, output: Tensor | None = None) -> None:
        self.head, self.features, self.output, self.address = head, features, output, 0
        self._weight = None if features is None else _weight_of_this_pass(head)

    @property
    def weight(self) -> Tensor:
        """The weight of the classifier."""
        return weight_of(self.head) if self._weight is None else self._weight

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
                f"of a batch is used, pass the same part of its features: {_BY_HAND}"
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
        with torch.autocast(logits.device.type, enabled=False):
            expected = F.linear(rows, weight.flatten(1).to(dtype), bias)
        error, size = (float(t) for t in torch.stack([(given - expected).norm(), expected.norm()]))
        if error > _TOLERANCE * size:
            raise ValueError(
                f"the logits are not W a + b of the classifier {self.head}: they differ from it by {error / size:.0%}; "
                f"where they are scaled or reordered, call {_BY_HAND} with features in the order of the logits and the "
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
    """

    def __init__(self) -> None:
        self._last = self._before = _NOTHING
        self._verified = False

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        """Copies and pickles of a model get a recorder of their own, without its tensors."""
        return (Recorder, ())

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        """Record one forward pass of the classifier."""
        if getattr(head, "_is_replica", False):
            raise ValueError(_DATA_PARALLEL)
        features = args[0] if args else kwargs["input"]
        record = Record(head, features.detach()) if head.training else Record(head)
        compiling = torch.compiler.is_compiling()
        if not compiling and output.grad_fn is not None:
            self._hang(record, output.grad_fn)
        elif compiling or not in_backward():
            if head.training:
                record.output = output
            self._before, self._last = self._last, record

    def clear(self) -> None:
        """Let go of the passes that wait."""
        self._last = self._before = _NOTHING

    def take(self, logits: Tensor, *, verify: bool = True) -> Record:
        """The record of the pass that made ``logits``; the first one taken is verified."""
        record = self._search(logits, self._settle())
        if record is None:
            raise ValueError(
                f"no features were recorded for these logits {shape_of(logits)}: they must come from the model that "
                "this criterion was attached to (a copy of the model needs a criterion of its own)"
            )
        if verify and not self._verified:
            self._verified = record.verify(logits)
        return record

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

    def _search(self, logits: Tensor, loose: list[Record]) -> Record | None:
        """Walk from the logits back to the classifier's output through operations that leave margins alone."""
        if logits.grad_fn is None:
            own = [r for r in loose if r.output is not None and r.output.data_ptr() == logits.data_ptr()]
            return next(iter(own + loose), None)
        key, stops = (_KEY, id(self)), []
        for node in _walk(logits.grad_fn, stop=_changes_margins):
            if key in _metadata(node):
                return _pick(_metadata(node)[key], logits)
            if _changes_margins(node) or node.name() in _OPAQUE:
                stops.append(node)
        if loose and any(node.name() in _OPAQUE for node in stops):
            return loose[0]
        for stop in stops:
            if any(key in _metadata(node) for node in _walk(stop)):
                raise ValueError(
                    f"the logits come from the classifier through {stop.name()}, which may scale, mix or drop them; "
                    f"call {_BY_HAND} with the features that belong to these logits and the weight times that scale"
                )
        return None


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
            f"neither output; call {_BY_HAND}"
        )
    return own[0]
