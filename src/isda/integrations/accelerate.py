"""Accelerate: a criterion on the device of an Accelerator and in its checkpoints."""

from __future__ import annotations

from typing import TypeVar

from accelerate import Accelerator

from isda.criterion import AugmentedLoss

Criterion = TypeVar("Criterion", bound=AugmentedLoss)


def prepare_criterion(accelerator: Accelerator, criterion: Criterion) -> Criterion:
    """Prepare a criterion, as ``accelerator.prepare`` does for models, and return it.

    It is moved to the accelerator's device, and ``save_state`` and ``load_state`` keep its statistics and step.
    ``total_steps`` are training forwards: ``epochs * len(loader)`` of the prepared loader, whatever is accumulated.

    Args:
        accelerator: of the training loop.
        criterion: ``ISDALoss.attach(model, ...)`` of the prepared model, or any other criterion of isda.

    Example:
        >>> import torch
        >>> from isda import ISDALoss
        >>> accelerator = Accelerator(cpu=True)
        >>> model = accelerator.prepare(torch.nn.Linear(4, 3))
        >>> criterion = prepare_criterion(accelerator, ISDALoss.attach(model, lambda_0=0.5, total_steps=10))
        >>> accelerator.backward(criterion(model(torch.randn(8, 4)), torch.arange(8) % 3))
        >>> accelerator.log({"isda_strength": criterion.strength, "isda_margin_variance": criterion.margin_variance})
    """
    criterion.to(accelerator.device)
    accelerator.register_for_checkpointing(criterion)
    return criterion
