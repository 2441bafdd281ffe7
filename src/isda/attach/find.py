"""Find the classifier of a model, also inside wrappers (DDP, FSDP, torch.compile, peft)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from isda.attach.hook import DATA_PARALLEL_ERROR, EXPLICIT_CALL, is_layer, is_product, sizes_of


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel, FullyShardedDataParallel, torch.compile and peft around it.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> unwrap(model) is model
        True
    """
    while True:
        if isinstance(model, nn.DataParallel):
            raise ValueError(DATA_PARALLEL_ERROR)
        inner = _inside(model)
        if inner is None:
            return model
        model = inner


def _inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    parts = model._modules
    for name in ("_orig_mod", "_fsdp_wrapped_module"):  # torch.compile; FullyShardedDataParallel
        if isinstance(parts.get(name), nn.Module):
            return parts[name]
    if callable(getattr(type(model), "get_base_model", None)):  # peft
        base = model.get_base_model()  # type: ignore[operator]
        return base if base is not model else None
    saved = parts.get("modules_to_save")
    if isinstance(saved, nn.ModuleDict) and "original_module" in parts:  # a layer that peft trains as a whole
        active = [name for name in model.active_adapters if name in saved]  # type: ignore[union-attr]
        return saved[active[0]] if active else parts["original_module"]
    return None


# Where the field keeps the last layer: torchvision (fc, classifier, head, heads), Hugging Face (classifier, score,
# decode_head, classification_head, logits_proj), segmentation_models_pytorch (segmentation_head), many a script.
_CONVENTIONS = (
    "fc",
    "classifier",
    "segmentation_head",
    "decode_head",
    "classification_head",
    "logits_proj",
    "score",
    "last_linear",
    "linear",
    "head",
    "heads",
)
# The second of a pair is something else where the first is there: a layer before the classifier, or a side task.
_BEFORE = (("classifier", "head"), ("segmentation_head", "classification_head"), ("decode_head", "classifier"))
# Heads of one model whose outputs are averaged or added up: low_classifier and high_classifier, head and head_dist.
_PARTNERS = {"low", "high", "cls", "dist", "distill", "distillation"}


def find_classifier(model: nn.Module, classifier: nn.Module | str | None = None) -> nn.Linear | nn.Conv2d:
    """The last layer of a classification or segmentation model; see `find_classifiers`.

    Raises:
        ValueError: nothing was found, or several, or what was found computes something other than W a + b.

    Example:
        >>> find_classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        Linear(in_features=8, out_features=3, bias=True)
    """
    layers = find_classifiers(model, classifier)
    if len(layers) > 1:
        raise ValueError(f"the model has {len(layers)} classifiers; pass the one to use as classifier=")
    return layers[0]  # type: ignore[return-value]


def find_classifiers(
    model: nn.Module, classifier: nn.Module | str | Sequence[nn.Module | str] | None = None
) -> list[nn.Module]:
    """The last layer of a model, or the last layers whose outputs it averages or adds up.

    Looked for, in this order: the argument; ``model.get_classifier()`` (timm and isda's own networks); the attributes
    fc, classifier, segmentation_head, decode_head, classification_head, logits_proj, score, last_linear, linear, head,
    heads (torchvision, Hugging Face, segmentation_models_pytorch), and in a container the same again, then the last
    linear layer in it; the last layer of an nn.Sequential; the model itself; if its only part is called ``model``, the
    same in that part (Ultralytics: ``model[-1].linear``). Wrappers (DistributedDataParallel, FullyShardedDataParallel,
    torch.compile, peft) are looked through.

    Raises:
        ValueError: nothing was found, or several, or what was found computes something other than W a + b.
    """
    model = unwrap(model)
    if classifier is not None:
        given = [classifier] if isinstance(classifier, (nn.Module, str)) else list(classifier)
        if not given:
            raise ValueError("classifier must name at least one layer, got none")
        return _check_same_outputs([_named(model, layer) for layer in given], "classifier")
    if callable(getattr(model, "get_classifier", None)):
        answer = model.get_classifier()  # type: ignore[operator]
        what = "model.get_classifier()"
        layers = [layer for head in _heads_of(answer) for layer in _layers_in(head, what)]
        return _check_same_outputs([_check_layer(layer, what) for layer in layers], what)
    if together := _summed_heads(model):
        return [_check_layer(layer, "the classifier") for layer in together]
    named = _conventional(model)
    if len(named) > 1:
        names = " and ".join(f"model.{name}" for name in named)
        raise ValueError(f"{names} both look like the classifier; pass classifier=<layer or name>{_candidates(model)}")
    for name, part in named.items():
        layers = _layers_in(part, f"model.{name}")
        return _check_same_outputs([_check_layer(layer, f"model.{name}") for layer in layers], f"model.{name}")
    if isinstance(model, nn.Sequential) or is_layer(model):
        layer = _last_layer(model)
        if layer is not None:
            return [_check_layer(layer, "the last layer of the Sequential")]
    if (inner := _only_part(model)) is not None:
        return find_classifiers(inner)
    looked = "get_classifier(), " + ", ".join(_CONVENTIONS)
    raise ValueError(
        f"no classifier found in {type(model).__name__}: looked for {looked} and an nn.Sequential; pass "
        f"classifier=<layer or name>{_candidates(model)}"
    )


def _named(model: nn.Module, classifier: nn.Module | str) -> nn.Module:
    if isinstance(classifier, str):
        try:
            named = model.get_submodule(classifier)
        except AttributeError:
            message = f"classifier must name a layer of the model, got {classifier!r}{_candidates(model)}"
            raise ValueError(message) from None
        return _check_layer(unwrap(named), f"classifier {classifier!r}")
    if not any(module is classifier for module in model.modules()):
        raise ValueError(f"classifier must be a layer of the model, got another {type(classifier).__name__}")
    return _check_layer(unwrap(classifier), "classifier")


def _conventional(module: nn.Module) -> dict[str, nn.Module]:
    """The parts of a module that have a conventional name and hold a layer."""
    parts = {name: getattr(module, name, None) for name in _CONVENTIONS}
    named = {n: part for n, part in parts.items() if isinstance(part, nn.Module) and _last_layer(part) is not None}
    for first, second in _BEFORE:
        if first in named:
            named.pop(second, None)
    if len(named) > 1:  # "head" and "heads" are names of much else
        named = {name: part for name, part in named.items() if name not in ("head", "heads")} or named
    return named


def _only_part(model: nn.Module) -> nn.Module | None:
    """The part called ``model`` if there is no other; in an nn.Sequential (Ultralytics) its last module."""
    children = dict(model.named_children())
    if set(children) != {"model"}:
        return None
    part = unwrap(children["model"])
    last = unwrap(part[-1]) if isinstance(part, nn.Sequential) and len(part) else part
    # The heads of detectors hold many layers, none of which is the classifier.
    return last if last is part or is_layer(last) or _conventional(last) else None


def _heads_of(answer: Any) -> list[Any]:
    """The heads that a model calls its classifier: one, or several in tuples, lists and an nn.ModuleList."""
    if isinstance(answer, (tuple, list, nn.ModuleList)):
        return [head for part in answer for head in _heads_of(part)] or [answer]
    return [answer]


def _layers_in(part: Any, what: str) -> list[nn.Module]:
    """The last layer of a part of a model, or the last layers that it adds up."""
    if not isinstance(part, nn.Module):
        raise ValueError(f"{what} must be a layer, got {type(part).__name__}")
    part = unwrap(part)
    if is_layer(part) or isinstance(part, (nn.Identity, nn.Sequential)):
        return [_last_layer(part) or part]
    if together := _summed_heads(part):
        return together
    inner = list(_conventional(part).values())
    if len(inner) == 1:
        return _layers_in(inner[0], what)
    return [_last_layer(part) or part]


def _summed_heads(module: nn.Module) -> list[nn.Module]:
    """The last layers of parts that stand side by side with related names, low_classifier and high_classifier."""
    if isinstance(module, nn.Sequential):
        return []
    families: dict[str, list[nn.Module]] = {}
    for name, part in module.named_children():
        word = "_".join(piece for piece in name.split("_") if piece not in _PARTNERS)
        layer = _last_layer(part) if word in _CONVENTIONS else None
        if layer is not None:
            families.setdefault(word, []).append(layer)
    for layers in families.values():
        if len(layers) > 1 and len({sizes_of(layer)[0] for layer in layers}) == 1:
            return layers
    return []


def _last_layer(module: nn.Module) -> nn.Module | None:
    """The last layer in a module, in the order in which they were made; adapters belong to their layer."""
    module = unwrap(module)
    if is_layer(module):
        return module
    for part in reversed(list(module.children())):
        layer = _last_layer(part)
        if layer is not None:
            return layer
    return None


def _candidates(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and is_layer(module)][-5:]
    return f"; its last linear layers are {', '.join(names)}" if names else "; it has no linear layer"


def _check_same_outputs(heads: list[nn.Module], what: str) -> list[nn.Module]:
    """Refuse heads that cannot be added up."""
    outputs = [sizes_of(head)[0] for head in heads]
    if len(set(outputs)) > 1:
        sizes = " and ".join(map(str, outputs))
        raise ValueError(f"{what} has classifiers of {sizes} outputs; pass the one to use as classifier=")
    return heads


def _check_layer(head: Any, what: str) -> nn.Module:
    """Refuse heads whose output is not exactly W a + b with the W that they show."""
    if isinstance(head, nn.Identity):
        raise ValueError(f"{what} is an nn.Identity: the model has no classifier (num_classes=0?)")
    if isinstance(head, nn.Module) and any(is_lazy(parameter) for parameter in head.parameters()):
        raise ValueError(
            f"{what} must have its weight before a criterion is attached, got a lazy {type(head).__name__} that has "
            "seen no input; run one batch through the model first"
        )
    if not (isinstance(head, nn.Module) and is_product(head)):
        raise ValueError(
            f"{what} must be an nn.Linear or an nn.Conv2d without groups, got {type(head).__name__}; for a head that "
            f"normalises or scales, call {EXPLICIT_CALL} with the weight that multiplies the features, scale included"
        )
    return head
