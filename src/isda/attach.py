"""Adopt ISDA in a model you did not write: which layer is its classifier?"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.recording import BY_HAND, DATA_PARALLEL

__all__ = ["find_classifier"]

# Where the field keeps the last layer: torchvision (fc, classifier, head, heads), Hugging Face (classifier, score).
_CONVENTIONS = ("fc", "classifier", "head", "heads", "score")


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
        raise ValueError(DATA_PARALLEL)
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
            f"scales, call {BY_HAND} with the weight that multiplies the features, scale included"
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
