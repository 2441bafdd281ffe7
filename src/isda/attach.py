"""Finding the classifier of a model, and recording the features that go into it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeAlias, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer: TypeAlias = nn.Linear | nn.Conv2d
PAIRS = "cls_classifier distillation_classifier", "classifier classifier_distill", "head head_dist"
"""Classifiers whose outputs distilled transformers average."""
NAMES = (
    "classifier fc segmentation_head decode_head classification_head head heads score last_linear logits_proj linear"
)
"""Where models keep their classifier, if they have no get_classifier(); else it is in the last part."""
KEPT_PASSES = 4
CHECKED_CALLS = 2
"""On a device, whose values make the host wait, copies of logits are compared in the first calls only."""
COMPARED_ROWS, TOLERANCE = 256, 0.05
INSTEAD = "pass features= and weight= to the criterion"


# -- finding ---------------------------------------------------------------------------------------------------------


def is_linear(module: Any) -> TypeGuard[Layer]:
    """Whether it computes W a + b; a convolution does, of the patches of its input."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


def linear_layers(model: Any) -> dict[str, Layer]:
    """The linear layers in a part of a model, by name."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    return {name: module for name, module in modules if is_linear(module)}


def find_classifiers(model: nn.Module) -> list[Layer]:
    """The layers whose mean the logits are, by convention: one, or two in a few distilled transformers."""
    if is_linear(model):
        return [model]
    if callable(getattr(model, "get_classifier", None)):
        found = model.get_classifier()  # type: ignore[operator]
        heads = found if isinstance(found, (tuple, list, nn.ModuleList)) else [found]
        return [layer for head in heads for layer in find_classifiers(head)]
    parts = {name: part for name, part in model.named_children() if linear_layers(part)}
    for names in [*PAIRS, *NAMES.split(), *list(parts)[-1:]]:
        if all(name in parts for name in names.split()):
            return [layer for name in names.split() for layer in find_classifiers(parts[name])]
    raise ValueError(f"{type(model).__name__} has no linear layer that could be its classifier; {INSTEAD}")


def named_classifiers(model: nn.Module, classifier: Any) -> list[Layer]:
    """The layers that are meant by a module, a name, or a list of them."""
    if isinstance(classifier, (list, tuple)):
        return [layer for part in classifier for layer in named_classifiers(model, part)]
    parts = dict(model.named_modules())
    if isinstance(classifier, str):  # in a wrapped model "fc" is "module.fc"
        names = [name for name in parts if f".{name}".endswith(f".{classifier}")]
        classifier = parts[min(names, key=len)] if names else classifier
    if classifier not in parts.values() or not linear_layers(classifier):
        known = ", ".join(list(linear_layers(model))[-5:])
        raise ValueError(f"classifier must be or name a linear layer of the model, such as {known}; got {classifier}")
    return find_classifiers(classifier)


@torch.no_grad()
def sampled_classifiers(model: nn.Module, sample: Any) -> list[Layer]:
    """The layers that make the logits of a sample: the last whose output they are, or several whose mean."""
    made: dict[Layer, Tensor] = {}

    def keep(layer: Layer, inputs: Any, output: Tensor) -> None:
        made[layer] = rows_of(layer, output.clone())

    handles = [layer.register_forward_hook(keep) for layer in linear_layers(model).values()]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        if isinstance(sample, Mapping):
            logits = logits_of(model(**sample))
        else:
            logits = logits_of(model(*sample) if isinstance(sample, (tuple, list)) else model(sample))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    for layer in reversed(made):
        rows = made[layer]
        if agreeing(rows, logits, exact=True) or equal_rows(rows, rows, logits) is not None:
            return [layer]
    alike = [layer for layer in made if made[layer].shape == logits.shape]
    for group in [*combinations(alike, 2), alike] if len(alike) > 1 else []:
        if agreeing(torch.stack([made[layer] for layer in group]).mean(0), logits, exact=True):
            return list(group)
    raise ValueError(
        f"the logits {tuple(logits.shape)} of {type(model).__name__} are neither the output of a linear layer nor the "
        f"mean of several; if they are W a + b of some features a, {INSTEAD}"
    )


def logits_of(output: Any) -> Tensor:
    """The logits in an output of transformers, torchvision or timm."""
    found = output
    for name in ("logits", "out"):
        if not isinstance(found, Tensor):
            found = found.get(name, found) if isinstance(found, Mapping) else getattr(found, name, found)
    found = found[0] if isinstance(found, (tuple, list)) and found else found
    if not isinstance(found, Tensor):
        raise ValueError(f"logits must be a tensor, or an output with .logits or ['out'], got {type(output).__name__}")
    return found


# -- comparing -------------------------------------------------------------------------------------------------------
# Features and what the classifier made of them are rows (N, ..., A) and (N, ..., C); logits have one of these layouts.


def arranged(rows: Tensor, layout: str) -> Tensor:
    """Rows in a layout of logits."""
    if layout in ("classes second", "resized"):
        return rows.movedim(-1, 1)
    if layout == "flat":
        return rows.flatten(0, -2)
    return rows.flatten(1, -2).mean(1) if layout == "mean" else rows


def layouts(rows: Tensor, shape: torch.Size) -> list[str]:
    """The layouts in which rows have the shape of some logits."""
    count, *grid, classes = rows.shape
    made = {"classes last": (count, *grid, classes)}
    if grid:
        made |= {"classes second": (count, classes, *grid), "flat": (rows.shape[:-1].numel(), classes)}
    if len(grid) == 2 and len(shape) == 4 and shape[2:] != tuple(grid):
        made |= {"resized": (count, classes, *shape[2:])}
    return [layout for layout in made if made[layout] == shape]


def agreeing(rows: Tensor, logits: Tensor, exact: bool = False) -> list[str]:
    """The layouts in which rows have the values of the logits, which may also be their mean or an interpolation."""
    found = layouts(rows, logits.shape)
    if "resized" in found:
        modes = [("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True), ("nearest", None)]
        maps, size = rows.movedim(-1, 1).float(), logits.shape[2:]
        resized = (F.interpolate(maps, size, mode=mode, align_corners=align) for mode, align in modes)
        return found if any(close(made, logits, 1, exact) for made in resized) else []
    if rows.ndim > 2 and logits.shape == (len(rows), rows.shape[-1]):
        found.append("mean")
    return [name for name in found if close(arranged(rows, name), logits, 1 if "second" in name else -1, exact)]


def close(made: Tensor, logits: Tensor, axis: int, exact: bool) -> bool:
    """Equal but for rounding, a constant per row (log_softmax) and, if not exact, one per class (a prior)."""
    size = logits.detach().float()
    difference = made.detach().float() - size
    for dim in (axis,) if exact or len(logits) == 1 else (axis, 0):
        size, difference = (t - t.mean(dim, keepdim=True) for t in (size, difference))
        if difference.nan_to_num(0, 0, 0).norm() <= 0.01 * size.nan_to_num(0, 0, 0).norm():
            return True
    return False


def equal_rows(rows: Tensor, features: Tensor, logits: Tensor) -> Tensor | None:
    """For each row of the logits (N, C) one that is equal to it; None unless all have their own and known features."""
    rows, features = rows.flatten(0, -2).to(logits.dtype), features.flatten(0, -2)
    if rows.shape[1:] != logits.shape[1:] or len(logits) * rows.numel() > 2**26:
        return None
    row, equal = (logits.detach().unsqueeze(1) == rows).all(2).nonzero().unbind(1)
    found = equal.new_zeros(len(logits))
    found[row] = equal
    if len(row.unique()) < len(logits) or len(equal.unique()) < len(logits):
        return None
    return found if torch.equal(features[equal], features[found[row]]) else None


def rows_of(layer: Layer, output: Tensor) -> Tensor:
    """The output of a layer with its classes last."""
    return output.movedim(1, -1) if isinstance(layer, nn.Conv2d) else output


def features_of(layer: Layer, inputs: Tensor, size: torch.Size) -> Tensor:
    """What the weight multiplies: the input of a linear layer, the patches that a convolution sees."""
    if isinstance(layer, nn.Conv2d) and (layer.kernel_size != (1, 1) or inputs.shape[2:] != size):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode)
        inputs = F.unfold(inputs, layer.kernel_size, layer.dilation, 0, layer.stride).unflatten(2, size)
    return rows_of(layer, inputs)


# -- recording -------------------------------------------------------------------------------------------------------


class Pass:
    """One forward pass: what went into the classifiers, nothing in eval mode, and the rows that they made of it."""

    def __init__(self, layers: list[Layer], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        traced = torch.compiler.is_compiling()
        self.layers, self.inputs = layers, inputs
        self.output = outputs[0] if traced else outputs[0].detach()  # in a graph the tensor itself tells the pass
        rows = [rows_of(layer, output.detach()) for layer, output in zip(layers, outputs, strict=True)]
        self.rows = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
        self.layout = "classes second" if isinstance(layers[0], nn.Conv2d) else "classes last"
        self.version = None if traced else self.output._version
        self.counted: set[int] | None = set()
        """The rows that have fed the statistics, None for all."""

    @property
    def features(self) -> Tensor:
        """(N, ..., A); of several classifiers side by side."""
        size = self.output.shape[2:]
        parts = [features_of(layer, inputs, size) for layer, inputs in zip(self.layers, self.inputs, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def viewed(self, logits: Tensor) -> tuple[str, Tensor | None]:
        """The layout of logits in the memory of the output, and the rows they show, None for all."""
        for layout in ("classes last", "classes second"):
            view = arranged(self.rows, layout)
            if (view.shape, view.stride(), view.data_ptr()) == (logits.shape, logits.stride(), logits.data_ptr()):
                return layout, None
        # The numbers of the elements, laid out in memory like the output, are seen through a view like the logits.
        numbers = torch.empty_strided(self.rows.shape, self.rows.stride(), dtype=torch.long)
        numbers.copy_(torch.arange(numbers.numel()).view(numbers.shape))
        seen = numbers.as_strided(logits.shape, logits.stride(), logits.storage_offset() - self.rows.storage_offset())
        classes = torch.arange(self.rows.shape[-1])
        for layout, axis in (("classes second", 1), ("classes last", -1)):
            rows = seen.movedim(axis, -1)
            if rows.shape[-1] == len(classes) and bool((rows % len(classes) == classes).all()):
                return layout, rows[..., 0] // len(classes)
        raise ValueError(f"logits {tuple(logits.shape)} are not whole rows of what the classifier made; {INSTEAD}")

    def is_new(self, rows: Tensor | None) -> bool:
        """Whether these rows are used for the first time: every row feeds the statistics once."""
        if self.counted is None or not self.counted:
            return self.counted is not None
        numbers = set(range(self.rows.shape[:-1].numel()) if rows is None else rows.flatten().tolist())
        if numbers & self.counted and numbers - self.counted:
            raise ValueError(f"a part of these rows was counted by an earlier call, another part not; {INSTEAD}")
        return not numbers <= self.counted

    def count(self, rows: Tensor | None) -> None:
        """These rows have fed the statistics."""
        self.counted = None if rows is None or self.counted is None else self.counted | set(rows.flatten().tolist())

    def is_explained(self, weight: Tensor) -> bool:
        """Whether the rows are W a + b."""
        made, features = (t.flatten(0, -2)[:COMPARED_ROWS].float() for t in (self.rows, self.features))
        rest, spread = made - features @ weight.detach().float().t(), made - made.mean(0)
        limit = TOLERANCE * spread.norm() + 1e-5 * made.norm()
        return not bool((rest - rest.mean(0)).norm() > limit)  # NaN, which the criterion names, contradicts nothing


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
        named = [(name, layer) for name, layer in linear_layers(model).items() if layer not in self.layers]
        self.others = [(name, m.out_features if isinstance(m, nn.Linear) else m.out_channels) for name, m in named]
        self.passes: list[Pass] = []
        self.running: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self.found: tuple[Pass, Tensor | None] | None = None
        self.unexplained = self.uncompared = CHECKED_CALLS
        self.handles = [layer.register_forward_hook(self.record, with_kwargs=True) for layer in self.layers]

    def __getstate__(self) -> dict[str, Any]:
        """Copies leave the tensors behind; the hooks of a copied model lead to the recorder that is copied with it."""
        return {**self.__dict__, "passes": [], "running": {}, "found": None}

    def detach(self) -> None:
        """Record nothing from now on."""
        self.passes, self.found = [], None
        for handle in self.handles:
            handle.remove()

    @property
    def weight(self) -> Tensor:
        """(C, A); of several classifiers side by side."""
        weights = [layer.weight.flatten(1) for layer in self.layers]
        return weights[0] if len(weights) == 1 else torch.cat(weights, 1) / len(weights)

    def record(self, layer: Layer, args: tuple[Any, ...], *rest: Any) -> None:
        """The forward hook of the classifiers: nothing is kept of exported, traced and recomputed passes."""
        output: Tensor = rest[-1]  # after the keyword arguments, which tools that copy hooks leave out
        if torch.compiler.is_compiling():
            if torch.compiler.is_exporting():
                return
        elif torch._C._get_tracing_state() or torch._C._current_graph_task_id() != -1 or address_of(output) is None:
            return
        if layer in self.layers and (layer.training or torch.is_grad_enabled()):
            self.running[layer] = args[0] if args else rest[0]["input"], output
        if len(self.running) == len(self.layers):
            inputs = [self.running[own][0].detach() for own in self.layers] if layer.training else []
            outputs = [self.running[own][1] for own in self.layers]
            unused = [own for own in self.passes if own.counted == set()]
            self.passes = [*unused[1 - KEPT_PASSES :], Pass(self.layers, inputs, outputs)]
            self.running = {}

    def find(self, logits: Tensor) -> tuple[Tensor, Tensor, bool] | None:
        """Features and weight behind the logits, and whether they are to be learned from; None after eval mode.

        Raises:
            ValueError: the classifier is not known to have made the logits.
        """
        traced = torch.compiler.is_compiling()
        recognised = self.recognised(logits, traced)
        if recognised is None:
            return None
        own, layout, rows = recognised
        if not traced and own.version not in (None, own.output._version):
            raise ValueError(f"the logits were changed in place after the classifier had made them; {INSTEAD}")
        features, weight = own.features, self.weight
        if hasattr(weight, "full_tensor") or weight.shape != (own.rows.shape[-1], features.shape[-1]):
            raise ValueError(f"the weight of the classifier is sharded outside of its forward pass; {INSTEAD}")
        if self.unexplained and not traced:
            self.unexplained -= 1
            if not own.is_explained(weight):
                raise ValueError(f"the classifier does not compute W a + b with the weight it shows; {INSTEAD}")
        learns, self.found = own.is_new(rows), (own, rows)
        if rows is not None:
            features = features.flatten(0, -2)[rows.to(features.device, non_blocking=True)]
        return arranged(features, layout), weight, learns

    def count(self) -> None:
        """The rows that were found last have fed the statistics."""
        if self.found is not None:
            self.found[0].count(self.found[1])
            self.found = None

    def recognised(self, logits: Tensor, traced: bool) -> tuple[Pass, str, Tensor | None] | None:
        """The pass that made the logits, their layout, and their rows if not all; by memory, else by their values."""
        address = None if traced or len(self.layers) > 1 else address_of(logits)
        for own in reversed(self.passes):
            if own.output is logits:
                return (own, own.layout, None) if own.inputs else None
            if address and address_of(own.output) == address:
                return (own, *own.viewed(logits)) if own.inputs else None
        if not self.layers[0].training:
            return None
        passes = [own for own in self.passes if own.inputs]
        fits: list[tuple[Pass, str, Tensor | None]]
        fits = [(own, layout, None) for own in passes for layout in layouts(own.rows, logits.shape)]
        if not traced and (len(fits) != 1 or self.uncompared or logits.is_cpu):
            self.uncompared = max(0, self.uncompared - 1)
            fits = [(own, layout, None) for own in passes for layout in agreeing(own.rows, logits)]
            if not fits:
                found = [(own, equal_rows(own.rows, own.features, logits)) for own in passes]
                fits = [(own, "classes last", rows) for own, rows in found if rows is not None]
        if not self.passes:
            raise ValueError(
                "no pass of the classifier was recorded: it was replaced, or the model was compiled and had run before "
                f"attach(); attach a criterion anew, before the first compiled pass, or {INSTEAD}"
            )
        if not fits:
            names = [name for name, classes in self.others if classes in logits.shape[1:2]]
            hint = f"did you mean classifier={names[-1]!r}? Else {INSTEAD}" if names else INSTEAD
            raise ValueError(f"the classifier {self.layers[0]} did not make these logits {tuple(logits.shape)}; {hint}")
        if any(traced or not torch.equal(own.features, fits[-1][0].features) for own, _, _ in fits[:-1]):
            raise ValueError(
                f"logits {tuple(logits.shape)} could be of several passes; call the criterion after each, or {INSTEAD}"
            )
        return fits[-1]


def address_of(tensor: Tensor) -> int | None:
    """Where the memory of a tensor starts; None in inference mode, and for stand-ins of compilers and transforms."""
    try:
        start = 0 if tensor.is_inference() else tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
    except (RuntimeError, NotImplementedError):
        return None
    return int(start) or None
