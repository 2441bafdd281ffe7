"""transformers.Trainer: a compute_loss_func and a callback that saves the statistics with each checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from isda.attach import logits_of
from isda.bce import ISDABCELoss
from isda.criterion import AugmentedLoss
from isda.integrations.common import attached, measures
from isda.loss import ISDALoss

FILE, FOLDER = "isda.pt", "isda_folder"
HOW = "pass the same object as both: Trainer(..., compute_loss_func=isda.loss, callbacks=[isda])"
IGNORED = -100
"""The label that Trainer does not count in num_items_in_batch."""


class ISDATraining(TrainerCallback):
    """Trains a Hugging Face classifier with ISDALoss instead of its model's loss.

    The losses of a step are added up and divided by num_items_in_batch, so gradient accumulation and several processes
    give the gradient of one large batch. Checkpoints get a file isda.pt with statistics and step, which
    ``resume_from_checkpoint`` reads. Evaluation is cross-entropy and leaves the statistics alone. Models of
    problem_type multi_label_classification get ISDABCELoss.

    Each log of the training has "isda_strength" and "isda_margin_variance". Trainer calls the reporters that it makes
    itself before the callbacks of users; for one that reports these too, pass
    ``report_to="none", callbacks=[isda, TensorBoardCallback()]``.

    Args:
        lambda_0: strength at the end of training.
        classifier: the last layer or its name, where it is not found.
        **settings: of the criterion: covariance, bound, label_smoothing (that of TrainingArguments by default), ...

    Attributes:
        criterion: of the current or latest training, None before there is a Trainer.

    Example:
        >>> isda = ISDATraining(lambda_0=0.5, covariance="diagonal")
        >>> more = {"compute_loss_func": isda.loss, "callbacks": [isda]}  # for Trainer(model, args, **more)
    """

    def __init__(self, lambda_0: float = 0.5, *, classifier: nn.Module | str | None = None, **settings: Any) -> None:
        self.lambda_0, self.settings = lambda_0, {"classifier": classifier, **settings}
        self.criterion: AugmentedLoss | None = None
        self.training = self.called = False

    def loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The ``compute_loss_func`` of the Trainer: the losses of a batch, divided by the labels of the whole step.

        Args:
            outputs: of the model: logits (N, C), of tokens (N, T, C) or of pixels (N, C, H, W), as a tensor, first in
                a tuple, or under "logits".
            labels: classes (N,), (N, T) or (N, H', W'), -100 to ignore; or distributions (N, C).
            num_items_in_batch: labels in all batches of this step of the optimizer; those of this batch by default.
        """
        if self.criterion is None or (torch.is_grad_enabled() and not self.training):
            raise ValueError(f"ISDATraining is not among the callbacks of this trainer; {HOW}")
        if labels is None:
            raise ValueError("every batch must have its classes under the name labels, got none")
        self.called |= self.training
        logits = logits_of(outputs)
        if logits.ndim == 3:
            logits, labels = logits.flatten(0, 1), labels.flatten(0, 1)
        items: Any = labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        if labels.is_floating_point() and not isinstance(self.criterion, ISDABCELoss):
            items = items / self.criterion.num_classes  # every share of a distribution was counted
        total: Tensor = self.criterion(logits, labels)
        return total / torch.as_tensor(items).clamp(min=1)

    # -- events of the Trainer -----------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """A criterion for evaluations before any training; the model is not changed."""
        self.criterion = self.criterion_of(model, args, 1)
        self.criterion.detach()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, train_dataloader: Any, **_: Any
    ) -> None:
        """Start without statistics, or with those of the checkpoint."""
        if args.n_gpu > 1:
            raise ValueError(
                f"one process must have one GPU, got {args.n_gpu}: start a process for each with torchrun or "
                "accelerate launch"
            )
        forwards = state.max_steps * args.gradient_accumulation_steps
        if args.max_steps <= 0:
            forwards = math.ceil(len(train_dataloader) * args.num_train_epochs)
        saved = saved_statistics(args, state) if state.global_step else None
        self.criterion = self.criterion_of(model, args, forwards, saved)
        self.training, self.called = True, False
        state.stateful_callbacks[FOLDER] = {"folder": str(Path(args.output_dir).resolve())}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The loss has to be the trainer's."""
        if not self.called:
            raise ValueError(f"the loss of ISDATraining is not the compute_loss_func of this trainer; {HOW}")

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any, **_: Any) -> None:
        """Add the strength and the variance to what is logged in training."""
        if self.training and self.criterion is not None:
            values = {name: float(value) for name, value in measures(self.criterion).items()}
            logs.update(values)
            state.log_history[-1].update(values)  # has a copy of the logs already

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the statistics to a checkpoint, in the process that saves it."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self.criterion is not None and args.should_save and not args.save_only_model and folder.is_dir():
            torch.save(self.criterion.state_dict(), folder / FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the model as it was; the criterion stays, for its statistics and for evaluations."""
        self.training = False
        if self.criterion is not None:
            self.criterion.detach()

    def criterion_of(
        self, model: nn.Module, args: Any, total_steps: int, state: dict[str, Tensor] | None = None
    ) -> AugmentedLoss:
        """The criterion for the kind of classes that a model has."""
        problem = getattr(getattr(model, "config", None), "problem_type", None)
        if problem == "regression":
            raise ValueError("problem_type must be a classification, got 'regression', which has no classes")
        kind: type[AugmentedLoss] = ISDALoss
        settings = {"label_smoothing": args.label_smoothing_factor, **self.settings}
        if problem == "multi_label_classification":
            kind, settings = ISDABCELoss, {"ignore_value": float(IGNORED), **self.settings}
        return attached(kind, model, self.lambda_0, total_steps, {**settings, "reduction": "sum"}, state)


def saved_statistics(args: Any, state: Any) -> dict[str, Tensor]:
    """The statistics of the checkpoint to resume from: where it was saved, or in the folder of this run."""
    saved = state.stateful_callbacks.get(FOLDER, {}).get("folder", args.output_dir)
    files = [Path(folder, f"checkpoint-{state.global_step}", FILE) for folder in (saved, args.output_dir)]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ValueError(f"the checkpoint must have been saved with ISDATraining, got none of {files[0]}, {files[1]}")
    state_dict: dict[str, Tensor] = torch.load(found, map_location="cpu", weights_only=True)
    return state_dict
