"""Accelerate: a criterion that follows the Accelerator's device, gradient accumulation and checkpoints."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from isda.integrations.common import import_library, warn_of_no_strength
from isda.losses import AugmentedLoss

__all__ = ["prepare_criterion"]

_GradientState: Any = import_library("accelerate", "accelerate").state.GradientState

_Criterion = TypeVar("_Criterion", bound=AugmentedLoss)


def prepare_criterion(accelerator: Any, criterion: _Criterion) -> _Criterion:
    """Prepare a criterion, as ``accelerator.prepare`` does for models, and return it.

    - Its statistics and class weights are moved to the accelerator's device.
    - The strength grows with the steps of the optimiser: of the batches that ``accelerator.accumulate`` gathers for one
      step, only the last (``sync_gradients``) increases it, however few they are at the end of an epoch.
    - ``accelerator.save_state`` and ``load_state`` keep statistics and step.
    - A strength that is still 0 after the first epoch is warned of.

    With lambda_0="auto", call ``criterion.match(held_out_loader)`` after each epoch. Statistics are shared between
    processes. ``total_steps`` are steps of the optimiser:
    ``math.ceil(len(loader) / accelerator.gradient_accumulation_steps) * epochs`` for a prepared loader.

    Args:
        accelerator: the accelerate.Accelerator of the loop.
        criterion: ``ISDALoss.attach(model, ...)`` of a prepared model, or any other criterion of isda.losses.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from isda import ISDALoss
        >>> accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
        >>> model = accelerator.prepare(torch.nn.Linear(4, 3))
        >>> criterion = prepare_criterion(accelerator, ISDALoss.attach(model, lambda_0=0.5, total_steps=10))
        >>> for _ in range(4):
        ...     with accelerator.accumulate(model):
        ...         accelerator.backward(criterion(model(torch.randn(8, 4)), torch.randint(3, (8,))))
        >>> criterion.step
        2
    """
    if not isinstance(criterion, AugmentedLoss):
        raise ValueError(f"criterion must be one of isda's, got {type(criterion).__name__}")
    if any(isinstance(hook, _Preparation) for hook in criterion._forward_pre_hooks.values()):
        raise ValueError("criterion must be prepared only once, got one that is already prepared")
    device = accelerator.device if accelerator.device_placement else criterion.covariance.count.device
    criterion.to(device)
    criterion.register_forward_pre_hook(_Preparation(), with_kwargs=True)
    accelerator.register_for_checkpointing(criterion)
    return criterion


class _Preparation:
    """A pre-hook of the criterion: holds the strength between steps, and looks at it when the second epoch begins."""

    def __init__(self) -> None:
        self.epoch_ended = self.checked = False

    def __call__(
        self, criterion: AugmentedLoss, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Pass the current strength, which then does not advance, for batches without an optimiser step."""
        gradients = _GradientState()
        if criterion.training and torch.is_grad_enabled():
            if self.epoch_ended and not self.checked:
                self.checked = True
                warn_of_no_strength(criterion, "call criterion.match(held_out_loader) at the end of each epoch")
            self.epoch_ended |= gradients.end_of_dataloader
        if kwargs.get("strength") is None and not gradients.sync_gradients:
            kwargs = {**kwargs, "strength": criterion.strength}
        return args, kwargs
