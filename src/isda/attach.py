"""Finding the classifier of a model, and recording the features that go into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAMES = ("classifier", "fc", "segmentation_head", "decode_head", "classification_head", "head", "heads", "score",
         "last_linear", "logits_proj", "logits", "linear", "output", "out")  # fmt: skip
"""Where models keep their classifier, if they have no get_classifier()."""
PAIRS = (("cls_classifier", "distillation_classifier"), ("classifier", "classifier_distill"), ("head", "head_dist"),
         ("low_classifier", "high_classifier"))  # fmt: skip
"""Classifiers whose outputs distilled transformers average."""
KEPT_PASSES = 4
CHECKED_CALLS = 2
"""In the first calls values decide whether logits are those of a pass, which makes the host wait for a device."""
COMPARED_ROWS, TOLERANCE = 256, 0.05
EXPLICIT = "pass features= and weight= to the criterion"


# -- finding ---------------------------------------------------------------------------------------------------------


def is_linear(module: nn.Module) -> bool:
    """Whether it computes W a + b; a convolution does, of the patches of its input."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


def classes_of(layer: nn.Module) -> int:
    """The number of outputs."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # type: ignore[return-value]


def find_classifiers(model: nn.Module) -> list[nn.Module]:
    """The layers whose mean the logits are, by convention: one, or two in a few distilled transformers."""
    if is_linear(model):
        return [model]
    if callable(getattr(model, "get_classifier", None)):
        found = model.get_classifier()  # type: ignore[operator]
        heads = list(found) if isinstance(found, (tuple, list, nn.ModuleList)) else [found]
        return [layer for head in heads for layer in find_classifiers(head)]
    for pair in PAIRS:
        if all(holds_linear(getattr(model, name, None)) for name in pair):
            return [layer for name in pair for layer in find_classifiers(getattr(model, name))]
    parts = {name: part for name, part in model.named_children() if holds_linear(part)}
    for name in NAMES:
        if name in parts:
            return find_classifiers(parts[name])
    if not parts:
        raise ValueError(f"{type(model).__name__} has no linear layer that could be its classifier; {EXPLICIT}")
    return find_classifiers(list(parts.values())[-1])


def holds_linear(part: Any) -> bool:
    """Whether there is a linear layer in a part of a model."""
    return isinstance(part, nn.Module) and any(is_linear(module) for module in part.modules())


def named_classifiers(model: nn.Module, classifier: Any) -> list[nn.Module]:
    """The layers that are meant by a module, a name, or a list of them."""
    if isinstance(classifier, (list, tuple)):
        return [layer for part in classifier for layer in named_classifiers(model, part)]
    part = classifier
    if isinstance(classifier, str):  # "fc" is "module.fc" in a wrapped model
        names = [name for name, _ in model.named_modules() if f".{name}".endswith(f".{classifier}")]
        part = model.get_submodule(min(names, key=len)) if names else None
    if not holds_linear(part) or not any(module is part for module in model.modules()):
        wanted = repr(classifier) if isinstance(classifier, str) else type(classifier).__name__
        raise ValueError(f"classifier must be a linear layer of the model or its name, one of {layer_names(model)}, "
                         f"got {wanted}")  # fmt: skip
    return find_classifiers(part)


def layer_names(model: nn.Module, last: int = 5) -> str:
    """The names of the last linear layers."""
    return ", ".join([repr(name) for name, module in model.named_modules() if name and is_linear(module)][-last:])


@torch.no_grad()
def sampled_classifiers(model: nn.Module, sample: Any) -> list[nn.Module]:
    """The layers that make the logits of a sample: the last one whose output they are, or several whose mean."""
    made: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        made[layer] = rows_last(layer, output.clone())

    handles = [layer.register_forward_hook(keep) for layer in model.modules() if is_linear(layer)]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        logits = logits_of(called(model, sample))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    layers = list(reversed(made))
    for layer in layers:
        if any(agrees(way, made[layer], logits) for way in ways(made[layer], logits)):
            return [layer]
    for layer in layers:
        if made[layer].shape[-1] == logits.shape[-1] and equal_rows(made[layer], logits):
            return [layer]
    alike = [layer for layer in layers if made[layer].shape == logits.shape]
    for group in [*combinations(alike, 2), *combinations(alike, 3)]:
        if close(sum(made[layer] for layer in group) / len(group), logits, -1):  # type: ignore[arg-type]
            return list(reversed(group))
    raise ValueError(
        f"no linear layer of {type(model).__name__} makes its logits {tuple(logits.shape)}, alone or as a mean; "
        f"{EXPLICIT}, as they are where the logits are a linear function of features"
    )


def called(model: nn.Module, sample: Any) -> Any:
    """The output of a model for a tensor, a tuple of arguments or a mapping of them."""
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(*sample) if isinstance(sample, (tuple, list)) else model(sample)


def logits_of(output: Any) -> Tensor:
    """The logits in an output of transformers, torchvision or timm.

    Example:
        >>> logits_of({"out": torch.zeros(2, 3), "aux": None}).shape
        torch.Size([2, 3])
    """
    found = output
    for name in ("logits", "out"):
        if isinstance(found, Mapping):
            found = found.get(name, found)
        elif not isinstance(found, Tensor):
            found = getattr(found, name, found)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise ValueError(f"logits must be a tensor, or an output with .logits or ['out'], got {type(output).__name__}")
    return found


# -- comparing -------------------------------------------------------------------------------------------------------
# What a classifier made, and its features, are kept as rows (N, ..., C) and (N, ..., A), whatever the layer. A way
# turns both into the layout of the logits.

Way = Callable[[Tensor], Tensor]


def as_recorded(rows: Tensor) -> Tensor:
    """(N, C) or (N, ..., C): classes last."""
    return rows


def classes_second(rows: Tensor) -> Tensor:
    """(N, C, ...): maps, or tokens as cross-entropy wants them."""
    return rows.movedim(-1, 1)


def flattened(rows: Tensor) -> Tensor:
    """(N ..., C): all tokens or pixels one below the other."""
    return rows.flatten(0, -2)


def averaged(rows: Tensor) -> Tensor:
    """(N, C): the mean over tokens or pixels."""
    return rows.flatten(1, -2).mean(1)


def resized(rows: Tensor) -> Tensor:
    """(N, C, H, W): maps that were interpolated since; the criterion resizes what it makes of them."""
    return rows.movedim(-1, 1)


def ways(rows: Tensor, logits: Tensor) -> list[Way]:
    """The ways from rows to something of the shape of the logits."""
    count, *grid, classes = rows.shape
    shape = tuple(logits.shape)
    if not grid:
        return [as_recorded] if shape == (count, classes) else []
    shapes: list[tuple[Way, tuple[int, ...]]] = [
        (as_recorded, (count, *grid, classes)),
        (classes_second, (count, classes, *grid)),
        (flattened, (rows.numel() // max(classes, 1), classes)),
        (averaged, (count, classes)),
    ]
    found = [way for way, made in shapes if made == shape]
    if not found and len(grid) == 2 and len(shape) == 4 and shape[:2] == (count, classes):
        found = [resized]
    return found


def agrees(way: Way, rows: Tensor, logits: Tensor) -> bool:
    """Whether the logits have the values of these rows."""
    if way is not resized:
        return close(way(rows), logits, 1 if way is classes_second else -1)
    maps, size = way(rows).float(), logits.shape[2:]
    modes: list[dict[str, Any]] = [{"mode": mode, "align_corners": corners} for mode in ("bilinear", "bicubic")
                                   for corners in (False, True)]  # fmt: skip
    return any(close(F.interpolate(maps, size, **mode), logits, 1) for mode in [*modes, {"mode": "nearest"}])


def close(rows: Tensor, logits: Tensor, axis: int) -> bool:
    """Equal but for rounding and a constant per row, as log_softmax leaves logits."""
    ours, theirs = (t.detach().float() - t.detach().float().mean(axis, keepdim=True) for t in (rows, logits))
    difference = (ours - theirs).nan_to_num(0, 0, 0).norm()
    return bool(difference <= 0.01 * theirs.nan_to_num(0, 0, 0).norm())


def equal_rows(rows: Tensor, logits: Tensor) -> Tensor | None:
    """Pairs (row of the logits, row that is equal to it), all of them; None if a row has none, or they are too many."""
    ours, theirs = rows.detach().flatten(0, -2).to(logits.dtype), logits.detach()
    if logits.ndim != 2 or ours.shape[-1] != theirs.shape[-1] or len(theirs) * ours.numel() > 2**28:
        return None
    pairs = (theirs.unsqueeze(1) == ours).all(2).nonzero()
    return pairs if len(pairs[:, 0].unique()) == len(logits) else None


def rows_last(layer: nn.Module, output: Tensor) -> Tensor:
    """Outputs of a layer as rows (N, ..., C)."""
    return output.movedim(1, -1) if isinstance(layer, nn.Conv2d) else output


def features_of(layer: nn.Module, inputs: Tensor, size: torch.Size) -> Tensor:
    """What the weight multiplies, as rows: the input of a linear layer, the patches that a convolution sees."""
    if not isinstance(layer, nn.Conv2d):
        return inputs
    if layer.kernel_size != (1, 1) or inputs.shape[2:] != size:
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
        inputs = F.unfold(inputs, layer.kernel_size, layer.dilation, 0, layer.stride).unflatten(2, size)  # type: ignore[arg-type]
    return inputs.movedim(1, -1)


# -- recording -------------------------------------------------------------------------------------------------------


class Pass:
    """One forward pass: what went into the classifiers, and what they made of it.

    Args:
        layers: the classifiers.
        inputs: of each, detached; none if they were in eval mode.
        outputs: of each.
    """

    def __init__(self, layers: list[nn.Module], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        self.layers, self.inputs = layers, inputs
        self.output = outputs[0] if torch.compiler.is_compiling() else outputs[0].detach()
        rows = [rows_last(layer, output.detach()) for layer, output in zip(layers, outputs)]
        self.rows = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
        self.counted = False
        self.counted_rows: Tensor | None = None
        self.address = 0 if torch.compiler.is_compiling() or len(layers) > 1 else address_of(self.output)
        self.version = self.output._version if self.address else 0

    @property
    def features(self) -> Tensor:
        """(N, ..., A); of several classifiers side by side."""
        size = self.output.shape[2:]
        parts = [features_of(layer, inputs, size) for layer, inputs in zip(self.layers, self.inputs)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @property
    def way(self) -> Way:
        """From rows to the layout of the classifier's output."""
        return classes_second if isinstance(self.layers[0], nn.Conv2d) else as_recorded

    def part(self, logits: Tensor) -> tuple[Way, Tensor | None]:
        """Which rows a view of the output shows, None for all of them as they are, and in which layout."""
        if self.output._version != self.version:
            raise ValueError(f"the logits were changed in place after the classifier had made them; {EXPLICIT}")
        for way in ways(self.rows, logits):
            view = way(self.rows)
            if way not in (averaged, resized) and (view.data_ptr(), view.stride()) == (
                logits.data_ptr(),
                logits.stride(),
            ):
                return way, None
        # The number of each element, laid out in memory as the output is, is seen through a view like the logits.
        classes = self.rows.shape[-1]
        numbers = torch.empty_strided(self.rows.shape, self.rows.stride(), dtype=torch.long)
        numbers.copy_(torch.arange(numbers.numel()).view(numbers.shape))
        try:
            offset = logits.storage_offset() - self.rows.storage_offset()
            seen = numbers.as_strided(logits.shape, logits.stride(), offset)
        except RuntimeError:
            seen = numbers.new_zeros(logits.shape)
        for way, axis in ((classes_second, 1), (as_recorded, -1)):
            rows = seen.movedim(axis, -1)
            if rows.shape[-1] == classes and bool((rows % classes == torch.arange(classes)).all()):
                return way, rows[..., 0] // classes
        raise ValueError(f"logits {tuple(logits.shape)} are not whole rows of what the classifier made; {EXPLICIT}")

    def matching_rows(self, logits: Tensor) -> Tensor | None:
        """Which rows have the values of the logits, one for each; None if some have none, or cannot be told apart."""
        pairs = equal_rows(self.rows, logits)
        if pairs is None or len(pairs[:, 1].unique()) < len(logits):
            return None
        features = self.features.flatten(0, -2)
        chosen = torch.empty_like(pairs[: len(logits), 1]).scatter_(0, pairs[:, 0].flip(0), pairs[:, 1].flip(0))
        return chosen if torch.equal(features[pairs[:, 1]], features[chosen[pairs[:, 0]]]) else None

    def count(self, rows: Tensor | None) -> bool:
        """Whether these rows are used for the first time; every row feeds the statistics once."""
        if self.counted:
            return False
        if rows is None and self.counted_rows is None:
            self.counted = True
            return True
        counted = self.rows.new_zeros(len(self.rows.flatten(0, -2)), dtype=torch.bool, device="cpu")
        counted = counted if self.counted_rows is None else self.counted_rows
        index = slice(None) if rows is None else rows.cpu()
        before = counted[index]
        if before.all():
            return False
        if before.any():
            raise ValueError(f"a part of these rows was counted in an earlier call, another part was not; {EXPLICIT}")
        counted[index] = True
        self.counted_rows = counted
        return True

    def is_explained(self, weight: Tensor) -> bool:
        """Whether the rows are W a + b."""
        made, features = (t.flatten(0, -2)[:COMPARED_ROWS].float() for t in (self.rows, self.features))
        rest = made - features @ weight.detach().float().t()
        spread = (made - made.mean(0)).norm()
        return bool((rest - rest.mean(0)).norm() <= TOLERANCE * spread + 1e-5 * made.norm())


class Recorder:
    """Keeps the latest passes of the classifiers of a model, until a criterion asks for the features of its logits.

    Args:
        model: the model, also wrapped (DistributedDataParallel, torch.compile, peft).
        classifier: its last layer, the name of it, or a list of layers whose mean the logits are.
        sample: a batch; the model is run with it once, and the layers that make its logits are taken.
    """

    def __init__(self, model: nn.Module, classifier: Any = None, sample: Any = None) -> None:
        if classifier is not None:
            self.layers = named_classifiers(model, classifier)
        else:
            self.layers = find_classifiers(model) if sample is None else sampled_classifiers(model, sample)
        self.candidates = {name: classes_of(m) for name, m in model.named_modules() if is_linear(m)}
        self.passes: list[Pass] = []
        self.parts: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layers)
        self.unchecked = CHECKED_CALLS
        self.handles = [layer.register_forward_hook(self.record, with_kwargs=True) for layer in self.layers]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles of model and criterion keep the hooks, which deep copies of the model lead to."""
        return {**self.__dict__, "passes": [], "parts": [None] * len(self.layers)}

    def detach(self) -> None:
        """Record nothing from now on."""
        for handle in self.handles:
            handle.remove()
        self.passes = []

    @property
    def weight(self) -> Tensor:
        """(C, A); of several classifiers side by side."""
        weights = [layer.weight.flatten(1) for layer in self.layers]
        return weights[0] if len(weights) == 1 else torch.cat(weights, 1) / len(weights)

    def record(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The forward hook of every classifier."""
        if torch.compiler.is_compiling():
            if torch.compiler.is_exporting():
                return
        elif torch.jit.is_tracing() or is_recomputing() or address_of(output) is None:
            return
        for number, own in enumerate(self.layers):
            if own is layer and (layer.training or torch.is_grad_enabled()):
                self.parts[number] = (args[0] if args else kwargs["input"], output)
        parts = [part for part in self.parts if part is not None]
        if len(parts) == len(self.layers):
            inputs = [part[0].detach() for part in parts] if layer.training else []
            waiting = [own for own in self.passes if not own.counted and own.counted_rows is None]
            self.passes = [*waiting[1 - KEPT_PASSES :], Pass(self.layers, inputs, [part[1] for part in parts])]
            self.parts = [None] * len(self.layers)

    def find(self, logits: Tensor) -> tuple[Tensor, Tensor, bool] | None:
        """Features and weight behind the logits, and whether they were not counted yet.

        None if the classifier was in eval mode. The memory of the logits tells their pass; copies are compared.

        Raises:
            ValueError: the logits are not known to be made by the classifier.
        """
        own, way, rows = self.recognised(logits)
        if own is None:
            return None
        weight = self.weight
        features = own.features
        if hasattr(weight, "full_tensor") or weight.shape != (own.rows.shape[-1], features.shape[-1]):
            raise ValueError(f"the weight of the classifier is sharded outside of its forward pass; {EXPLICIT}")
        if self.unchecked and not torch.compiler.is_compiling():
            if not own.is_explained(weight):
                raise ValueError(f"the logits are not W a + b of {self.layers}; {self.hint(logits)}")
            self.unchecked -= 1
        learns = own.count(rows)
        if rows is not None:
            features = features.flatten(0, -2)[rows.to(features.device)]
        return way(features), weight, learns

    def recognised(self, logits: Tensor) -> tuple[Pass | None, Way, Tensor | None]:
        """The pass that made the logits, from its rows to their layout, and which rows if not all."""
        traced = torch.compiler.is_compiling()
        address = None if traced else address_of(logits)
        for own in reversed(self.passes):
            if own.output is logits or (address and own.address == address):
                if not own.inputs:
                    return None, own.way, None
                return (own, own.way, None) if own.output is logits else (own, *own.part(logits))
        if not self.layers[0].training:
            return None, as_recorded, None
        passes = [own for own in self.passes if own.inputs]
        fits: list[tuple[Pass, Way, Tensor | None]] = [
            (own, way, None) for own in passes for way in ways(own.rows, logits)
        ]
        if not traced and (len(fits) != 1 or self.unchecked):
            fits = [fit for fit in fits if agrees(fit[1], fit[0].rows, logits)]
            if not fits:
                found = [(own, own.matching_rows(logits)) for own in passes]
                fits = [(own, as_recorded, rows) for own, rows in found if rows is not None]
        if not fits:
            raise ValueError(f"logits {tuple(logits.shape)} are not made by {self.layers}; {self.hint(logits)}")
        if len(fits) > 1 and (traced or any(fit[0] is not fits[0][0] for fit in fits)):
            raise ValueError(
                f"logits {tuple(logits.shape)} could be of several passes; call the criterion after each, or {EXPLICIT}"
            )
        return fits[0]

    def hint(self, logits: Tensor) -> str:
        """What to do: the names of layers that make as many classes, or features and weight by hand."""
        names = [name for name, classes in self.candidates.items() if logits.ndim > 1 and classes == logits.shape[1]]
        return f"did you mean classifier={names[-1]!r}? Else {EXPLICIT}" if names else EXPLICIT


def address_of(tensor: Tensor) -> int | None:
    """Where a tensor is kept in memory; None for the stand-ins of compilers and transforms."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def is_recomputing() -> bool:
    """Whether a backward pass runs: a forward pass in it is a recomputation of gradient checkpointing."""
    return torch._C._current_graph_task_id() != -1
