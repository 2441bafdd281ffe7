"""A small network in a loop with an Accelerator, and the plain loop it has to equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDALoss
from isda.integrations.accelerate import prepare_criterion

LAMBDA_0, RATE, CLASSES = 3.0, 0.2, 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def samples(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(size) % CLASSES
    return TensorDataset(torch.randn(size, 4, generator=generator) + labels.unsqueeze(1) - 1, labels)


def accelerated(
    size: int,
    batch_size: int,
    accumulation: int,
    epochs: list[int],
    *,
    total_steps: int,
    load: Path | None = None,
    save: Path | None = None,
    **settings: Any,
) -> tuple[nn.Module, ISDALoss]:
    """Train for some epochs, from a saved state or from the start, and save the state in the end."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, cpu=True)
    model = network()
    loader = DataLoader(samples(size), batch_size=batch_size)
    model, optimiser, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE), loader)
    criterion = ISDALoss.attach(model, LAMBDA_0, total_steps, **settings)
    criterion = prepare_criterion(accelerator, criterion)
    if load is not None:
        accelerator.load_state(str(load))
    for _ in epochs:
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(criterion(model(x), y))
                optimiser.step()
                optimiser.zero_grad()
    if save is not None:
        accelerator.save_state(str(save))
    return accelerator.unwrap_model(model), criterion


def plain_loop(
    size: int, batch_size: int, accumulation: int, epochs: int, lambda_0: float = LAMBDA_0, **settings: Any
) -> tuple[nn.Module, ISDALoss]:
    """Means of batches over ``accumulation``, a step at the end of every window and epoch, features by hand, SGD."""
    model, data = network(), samples(size)
    criterion = ISDALoss(CLASSES, 8, lambda_0, schedule="constant", **settings)
    batches = [data[start : start + batch_size] for start in range(0, size, batch_size)]
    windows = [batches[start : start + accumulation] for start in range(0, len(batches), accumulation)] * epochs
    for step, window in enumerate(windows):
        total = torch.zeros(())
        for x, y in window:
            features: Tensor = model[:2](x)
            strength = lambda_0 * step / len(windows)
            total = total + criterion(
                model[2](features), y, features=features, weight=model[2].weight, strength=strength
            )
        (total / accumulation).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad = None
    return model, criterion


def whole_and_resumed(folder: Path) -> dict[str, dict[str, Tensor]]:
    """What one of several processes ends with: after two epochs; and after one, saved, loaded, and another."""
    settings = {"size": 40, "batch_size": 2, "accumulation": 2, "total_steps": 10}
    ended = {}
    runs = {
        "whole": {"epochs": [0, 1]},
        "stopped": {"epochs": [0], "save": folder},
        "resumed": {"epochs": [1], "load": folder},
    }
    for name, run in runs.items():
        model, criterion = accelerated(**settings, **run)
        ended[f"{name} model"], ended[f"{name} statistics"] = model.state_dict(), criterion.state_dict()
    return ended
