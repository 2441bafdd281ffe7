"""Finding the classifier of a model, and recording what goes into it."""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NAMES = ("head.fc", "heads.head", "classifier", "fc", "head", "score", "logits", "last_linear", "output")
"""Where models keep their classifier, if they have no get_classifier()."""


def find_classifiers(model: nn.Module) -> list[nn.Module]:
    """The layers whose mean the logits are: nearly always one, two in a few distilled transformers."""
    model = getattr(model, "module", model)
    if hasattr(model, "get_classifier"):
        found = model.get_classifier()
        found = [last for part in (found if isinstance(found, (tuple, list)) else [found]) if (last := last_linear(part))]
        if found:
            return found
    for name in NAMES:
        try:
            if last := last_linear(model.get_submodule(name)):
                return [last]
        except AttributeError:
            pass
    if last := last_linear(model):
        return [last]
    raise ValueError(f"no linear layer was found in {type(model).__name__}; pass classifier=")


def last_linear(module: nn.Module) -> nn.Module | None:
    layers = [m for m in module.modules() if is_linear(m)]
    return layers[-1] if layers else None


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


@torch.no_grad()
def classifiers_of(model: nn.Module, sample) -> list[nn.Module]:
    """The layers that made the logits of a sample: one whose output they are, or several whose mean."""
    outputs: dict[nn.Module, Tensor] = {}
    layers = [m for m in model.modules() if is_linear(m)]
    handles = [m.register_forward_hook(lambda m, i, o: outputs.__setitem__(m, o)) for m in layers]
    training = model.training
    try:
        logits = logits_of(model.eval()(**sample) if isinstance(sample, dict) else model(*sample) if isinstance(sample, (tuple, list)) else model(sample))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    fits = [m for m, o in outputs.items() if (found := Pass(o, o).selected(logits)) and found.logits.shape == logits.shape]
    for m in reversed(fits):
        if torch.allclose(Pass(outputs[m], outputs[m]).selected(logits).logits, logits, rtol=1e-3, atol=1e-5):
            return [m]
    for count in range(2, len(fits) + 1):
        if torch.allclose(sum(outputs[m] for m in fits[-count:]) / count, logits, rtol=1e-3, atol=1e-5):
            return fits[-count:]
    resized = [m for m, o in outputs.items() if o.ndim == logits.ndim == 4 and o.shape[:2] == logits.shape[:2]]
    if resized:
        return resized[-1:]
    raise ValueError(f"no linear layer of {type(model).__name__} made logits {tuple(logits.shape)}, alone or as a mean; pass features= and weight=")


def logits_of(output) -> Tensor:
    """The logits of an output of transformers, torchvision or timm."""
    for name in ("logits", "out"):
        if not isinstance(output, Tensor):
            output = output[name] if isinstance(output, dict) and name in output else getattr(output, name, output)
    return output[0] if isinstance(output, (tuple, list)) else output


@dataclass
class Pass:
    """One forward pass: features (N, A) or (N, A, H, W), and logits W a + b as the classifiers made them."""

    features: Tensor
    logits: Tensor
    counted: bool = False

    def selected(self, logits: Tensor) -> Pass | None:
        """This pass, for logits that are its own, resized or one token of each sequence; None for others."""
        own = self.logits
        if own.shape == logits.shape or own.ndim == logits.ndim == 4 and own.shape[:2] == logits.shape[:2]:
            return self
        if own.ndim == 3 and logits.shape == (own.shape[0], own.shape[2]):  # a sequence is classified by one of its tokens
            token = (own == logits.unsqueeze(1)).all(2).to(torch.uint8).argmax(1)
            rows = torch.arange(len(own), device=own.device)
            return Pass(self.features[rows, token], own[rows, token])
        return Pass(self.features.reshape(-1, self.features.shape[1]), own.reshape(logits.shape)) if own.numel() == logits.numel() else None


class Recorder:
    """Keeps the latest passes of the classifiers, until a loss takes one."""

    def __init__(self, model: nn.Module, classifiers: list[nn.Module] | None = None, sample=None) -> None:
        self.classifiers = classifiers or (find_classifiers(model) if sample is None else classifiers_of(model, sample))
        self.parts: list[list] = [[] for _ in self.classifiers]
        self.passes: deque[Pass] = deque(maxlen=4)
        self.to_verify = 3
        self.handles = [layer.register_forward_hook(lambda m, i, o, k=k: self.record(k, m, i[0], o)) for k, layer in enumerate(self.classifiers)]

    def record(self, k: int, module: nn.Module, features: Tensor, output: Tensor) -> None:
        if not module.training:
            return
        features = features.detach()
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1):  # linear in the patches of its input
            patches = nn.functional.unfold(features, module.kernel_size, module.dilation, module.padding, module.stride)
            features = patches.unflatten(2, output.shape[2:])
        self.parts[k] = [features, output.detach()]
        if k == len(self.classifiers) - 1 and all(self.parts):
            features, outputs = zip(*self.parts)
            self.passes.append(Pass(torch.cat(features, -1), sum(outputs) / len(outputs)) if len(outputs) > 1 else Pass(features[0], outputs[0]))

    def detach(self):
        for handle in self.handles:
            handle.remove()

    @property
    def weight(self) -> Tensor:
        """(C, A), of several classifiers side by side."""
        weights = [layer.weight.flatten(1) for layer in self.classifiers]
        return weights[0] if len(weights) == 1 else torch.cat(weights, 1) / len(weights)

    def find(self, logits: Tensor) -> tuple[Tensor, bool] | None:
        """The features behind the logits, and whether the pass is used for the first time; None if the classifier is in eval mode.

        The same memory decides, which a pass keeps alive. Logits that were copied since (averaged, resized, cast) are those of the only pass
        whose shape fits; their values decide in the first calls, and wherever several passes fit.
        """
        if not self.classifiers[0].training:
            return None
        fits = []
        for own in reversed(self.passes):
            found = own.selected(logits)
            if found is not None:
                fits.append((own, found))
        if not torch.compiler.is_compiling():
            same = [pair for pair in fits if pair[0].logits.data_ptr() == logits.data_ptr()]
            fits = same or [pair for pair in fits if not pair[0].counted] or fits
            if not same and (self.to_verify or len(fits) > 1):
                self.to_verify = max(0, self.to_verify - 1)
                fits = [(own, found) for own, found in fits if found.logits.shape != logits.shape or close(found.logits, logits)]
                if len(fits) > 1 and fits[0][1].logits.shape != logits.shape:
                    raise ValueError("several passes could have made these resized logits; call the criterion after each, or pass features= and weight=")
        if not fits:
            raise ValueError(f"logits {tuple(logits.shape)} are not what {self.classifiers[0]} made; pass classifier=, or features= and weight=")
        own, found = fits[0]
        learns, own.counted = not own.counted, True
        return found.features, self.weight, learns


def close(a: Tensor, b: Tensor) -> bool:
    """Equal but for a constant per row, as log_softmax leaves logits, and for rounding."""
    difference = (a - b).detach().float()
    return bool((difference - difference.mean(1, keepdim=True)).norm() <= 1e-2 * (b - b.mean(1, keepdim=True)).detach().float().norm())
