"""What models are wrapped in: many processes, the compiler, adapters. All are looked through."""

from __future__ import annotations

from torch import nn

from isda.recording import DATA_PARALLEL

__all__ = ["unwrap"]


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel, FullyShardedDataParallel, torch.compile and peft around it.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> unwrap(model) is model
        True
    """
    while True:
        if isinstance(model, nn.DataParallel):
            raise ValueError(DATA_PARALLEL)
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
