"""Adopt ISDA in a model you did not write: find its classifier and record what goes into it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from isda.checks import shape_of

# Where the field keeps the last layer: torchvision (fc, classifier, head, heads), Hugging Face (classifier, score).
_CONVENTIONS = ("fc", "classifier", "head", "heads", "score")

# What may lie between the classifier's output and the logits that the criterion gets without changing the scale of the
# margins: views, copies, the wrapper of DistributedDataParallel, and upsampling.
_HARMLESS = (
    "View", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Permute", "Transpose", "TBackward", "Clone", "Alias", "Copy",
    "ToCopy", "Contiguous", "Expand", "_DDPSink", "Upsample", "Movedim",
)  # fmt: skip
_KEY = "isda"
_MOST_NODES = 64


def find_classifier(model: nn.Module, classifier: nn.Module | str | None = None) -> nn.Linear | nn.Conv2d:
    """The last layer of a classification or segmentation model.

    Looked for, in this order: the argument; ``model.get_classifier()`` (timm and isda's own networks); the attributes
    fc, classifier, head, heads, score (torchvision, Hugging Face), and in a container the last linear layer in it; the
    last layer of an nn.Sequential. Wrappers (DistributedDataParallel, torch.compile) are looked through.

    Raises:
        ValueError: nothing was found, or what was found computes something other than W a + b.

    Example:
        >>> find_classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        Linear(in_features=8, out_features=3, bias=True)
    """
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
            "DistributedDataParallel"
        )
    model = _unwrap(model)
    if isinstance(classifier, str):
        try:
            return _checked(model.get_submodule(classifier), f"classifier {classifier!r}")
        except AttributeError:
            raise ValueError(
                f"classifier must name a layer of the model, got {classifier!r}{_candidates(model)}"
            ) from None
    if classifier is not None:
        if not any(module is classifier for module in model.modules()):
            raise ValueError(f"classifier must be a layer of the model, got another {type(classifier).__name__}")
        return _checked(classifier, "classifier")
    if callable(getattr(model, "get_classifier", None)):
        return _checked(model.get_classifier(), "model.get_classifier()")  # type: ignore[operator]
    for name in _CONVENTIONS:
        part = getattr(model, name, None)
        found = _last_layer(part) if isinstance(part, nn.Module) else None
        if found is not None:
            return _checked(found, f"model.{name}")
    if isinstance(model, nn.Sequential):
        found = _last_layer(model)
        if found is not None:
            return _checked(found, "the last layer of the Sequential")
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
    # Parametrised layers (weight norm) are subclasses made on the fly, with the forward of what they wrap.
    forward = getattr(type(head), "forward", None)
    plain_linear = isinstance(head, nn.Linear) and forward is nn.Linear.forward
    plain_conv = isinstance(head, nn.Conv2d) and forward is nn.Conv2d.forward
    if plain_conv:
        plain_conv = head.kernel_size == (1, 1) and head.groups == 1 and head.padding == (0, 0)
    if not (plain_linear or plain_conv):
        raise ValueError(
            f"{what} must be an nn.Linear or a 1x1 nn.Conv2d, got {type(head).__name__}; for a head that normalises or "
            "scales, call criterion(logits, targets, features=..., weight=...) with the weight that multiplies the "
            "features, scale included"
        )
    return head


def record_inputs(head: nn.Linear | nn.Conv2d) -> Recorder:
    """Record the inputs of ``head`` from now on."""
    recorder = Recorder()
    head.register_forward_hook(recorder)
    return recorder


class Record:
    """The input of one forward pass of the classifier, detached: it keeps no graph alive."""

    def __init__(self, features: Tensor, head: nn.Module) -> None:
        self.features, self.head = features, head

    @property
    def weight(self) -> Tensor:
        """The classifier's weight, as it is now: gathered or recomputed by whoever shards or parametrises it."""
        return self.head.weight  # type: ignore[return-value]

    def rows_for(self, logits: Tensor) -> Tensor:
        """The features in the layout of the logits: (N, A) or (N, A, ...)."""
        features = self.features
        if isinstance(self.head, nn.Linear) and logits.ndim == 2:
            features = features.flatten(0, -2)
        elif isinstance(self.head, nn.Linear):
            features = features.movedim(-1, 1)
        elif logits.ndim == 2:
            features = features.flatten(2).movedim(1, -1).flatten(0, -2)
        if len(features) != len(logits):
            raise ValueError(
                f"the classifier was given {len(features)} samples, but logits has {len(logits)}; where only a part "
                "of a batch is used, pass the same part of its features: criterion(logits, targets, features=..., "
                "weight=...)"
            )
        return features


def _metadata(node: Any) -> dict[Any, Any]:
    """The dictionary that every node of the autograd graph carries."""
    return node.metadata  # the type stubs call it a method


class Recorder:
    """A forward hook that remembers the input of the last call, and ties each input to the graph of its output.

    The record of a call hangs on the autograd node of its output and lives as long as that graph. So the features are
    found by the logits they belong to, even when the model ran again in between, and nothing else is kept alive. Where
    there is no graph to follow (under torch.compile, or without gradients) the last call is used.
    """

    def __init__(self) -> None:
        self._last: Record | None = None

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        """Copies and pickles of a model get a recorder of their own, without its tensors."""
        return (Recorder, ())

    def __call__(self, head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Record one forward pass of the classifier."""
        if torch.compiler.is_compiling():
            self._last = Record(inputs[0].detach(), head)
            return
        if torch._C._current_graph_task_id() != -1:
            return  # activation checkpointing runs the forward again inside backward
        if not (head.training or torch.is_grad_enabled()):
            return  # evaluation: nobody will ask
        record = Record(inputs[0].detach(), head)
        if output.grad_fn is None:
            self._last = record
        else:
            self._last = None
            _metadata(output.grad_fn)[_KEY, id(self)] = record

    def clear(self) -> None:
        """Let go of the last call."""
        self._last = None

    def take(self, logits: Tensor) -> Record:
        """The record of the call that made ``logits``."""
        record = self._from_graph(logits) or self._last
        self._last = None
        if record is None:
            raise ValueError(
                f"no features were recorded for these logits {shape_of(logits)}: they must come from the model that "
                "this criterion was attached to (a copy of the model needs a criterion of its own), run in training mode"
            )
        return record

    def _from_graph(self, logits: Tensor) -> Record | None:
        """Walk from the logits back to the classifier's output through operations that leave margins alone."""
        key = (_KEY, id(self))
        waiting = deque([] if logits.grad_fn is None else [logits.grad_fn])
        blocked = None
        for _ in range(_MOST_NODES):
            if not waiting:
                break
            node = waiting.popleft()
            if key in _metadata(node):
                return _metadata(node)[key]
            if any(name in node.name() for name in _HARMLESS):
                waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
            else:
                blocked = blocked or node
        if blocked is not None and self._last is None and self._behind(blocked, key):
            raise ValueError(
                f"the logits come from the classifier through {blocked.name()}, which may scale them; call "
                "criterion(logits, targets, features=..., weight=...) with the weight times that scale"
            )
        return None

    @staticmethod
    def _behind(node: Any, key: tuple[str, int]) -> bool:
        """Whether the classifier's output lies close behind ``node``."""
        waiting = deque([node])
        for _ in range(_MOST_NODES):
            if not waiting:
                return False
            here = waiting.popleft()
            if key in _metadata(here):
                return True
            waiting.extend(parent for parent, _ in here.next_functions if parent is not None)
        return False
