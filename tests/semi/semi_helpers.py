"""A small student, unlabelled batches and training steps that the semi-supervised tests share."""

from __future__ import annotations

import torch
from torch import nn

from isda.lab.methods.semi import SemiSupervised, UnlabelledBatch, create
from isda.lab.networks import Network

CLASSES, FEATURES, SAMPLES, LABELS, SHAPE = 4, 6, 24, 8, (2, 3, 3)


def student(seed: int = 0, *, norm: bool = True, dropout: float = 0.3, dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(18, FEATURES), nn.Tanh(), nn.Dropout(dropout)]
    if norm:
        layers.insert(2, nn.BatchNorm1d(FEATURES))
    return Network(nn.Sequential(*layers), nn.Linear(FEATURES, CLASSES)).to(dtype).train()


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unlabelled(size: int = 6, seed: int = 1) -> UnlabelledBatch:
    images = normal(size, *SHAPE, seed=seed)
    return UnlabelledBatch(
        images,
        second=images + 0.3 * normal(size, *SHAPE, seed=seed + 100),
        indices=torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))[:size],
    )


def labelled(size: int = 5, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(size, *SHAPE, seed=seed + 300), torch.arange(size) % CLASSES


def objective_for(name: str, network: nn.Module, **settings: object) -> SemiSupervised:
    """The method with a strength and weights that are not zero, and a threshold that untrained networks pass."""
    options: dict[str, object] = {"epsilon": 1.0, "xi": 1e-3} if name.startswith("vat") else {}
    return create(name, network, labels=LABELS, samples=SAMPLES, total_steps=20, **(options | settings))


def run_steps(objective: SemiSupervised, network: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    """Training steps whose randomness depends on nothing but the step; an epoch has four."""
    for step in steps:
        torch.manual_seed(1000 + step)
        terms, _ = objective(network, *labelled(seed=step), unlabelled(seed=step))
        optimiser.zero_grad()
        sum(terms.values()).backward()
        optimiser.step()
        objective.after_step(network)
        if step % 4 == 3:
            objective.after_epoch()


def warmed_up(name: str, steps: int = 5, **settings: object) -> tuple[SemiSupervised, Network]:
    """An objective and its network after a few steps: ramps, strength, teacher and ensemble are under way."""
    network = student()
    objective = objective_for(name, network, **settings)
    run_steps(objective, network, torch.optim.SGD(network.parameters(), lr=0.1), range(steps))
    return objective, network
