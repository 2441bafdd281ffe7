"""transformers.Trainer: a compute_loss_func, and a callback that sets the step and saves the statistics."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils.files import atomic_write
from isda.covariance import CovarianceModel
from isda.integrations.common import (
    AUTO,
    HeldOutLogits,
    check_strength,
    given,
    import_library,
    steps_for,
    warn_of_no_strength,
)
from isda.losses import AugmentedLoss, ISDABCELoss, ISDALoss
from isda.losses.targets import is_soft

__all__ = ["ISDATraining"]


def write_statistics(criterion: nn.Module, path: Path, origin: dict[str, str]) -> None:
    """Write the state_dict of ``criterion``, with ``origin`` as metadata; the file is never left incomplete."""
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in criterion.state_dict().items()
    }
    with atomic_write(path) as unfinished:
        # safetensors creates files that only their owner may read; this one follows the umask.
        unfinished.touch()
        mode = unfinished.stat().st_mode
        save_file(tensors, unfinished, metadata=origin)
        unfinished.chmod(mode)


def read_origin(path: Path) -> dict[str, str] | None:
    """The ``origin`` of `write_statistics`; None if there is no such file."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_statistics(criterion: nn.Module, path: Path) -> None:
    """Load the statistics of a file into ``criterion``; a ValueError if its settings are different."""
    from safetensors.torch import load_file

    tensors, own = load_file(path), criterion.state_dict()
    saved, expected = ({name: tuple(t.shape) for name, t in state.items()} for state in (tensors, own))
    if saved != expected:
        want, got = (", ".join(f"{name} {shape}" for name, shape in sorted(s.items())) for s in (expected, saved))
        raise ValueError(
            f"{path} must hold the statistics of this criterion, {want}, got {got}; resume with the covariance, class "
            "weights, classes and kind of lambda_0 (a number or 'auto') that it was saved with"
        )
    criterion.load_state_dict(tensors)


_TrainerCallback: Any = import_library("transformers", "huggingface").TrainerCallback
_CallbackHandler: Any = import_library("transformers.trainer_callback", "huggingface").CallbackHandler

_LOGGED = "isda_strength"
_EVALUATE = "evaluate at least once per epoch, on an eval_dataset with labels"
_FILE = "isda.safetensors"
_KEY = "isda"
"""The key in the trainer's state, and so in trainer_state.json, of the identity of the statistics."""
_IGNORED = -100
"""The label that Trainer does not count in num_items_in_batch, which is fixed."""
_RESERVED = {
    "reduction": "the loss is divided by the number of labels in the whole step",
    "ignore_index": "Trainer counts every label but -100",
    "ignore_value": "Trainer counts every label but -100",
    "total_steps": "the strength grows until the trainer's last step",
}
_HOW = (
    "pass the same object as both: isda = ISDATraining(); Trainer(..., compute_loss_func=isda.loss, callbacks=[isda])"
)
_NO_CALLBACK = f"ISDATraining is not among the callbacks of the trainer that uses its loss; {_HOW}"


class ISDATraining(_TrainerCallback):
    """Trains a Hugging Face classifier with ISDALoss instead of its model's loss.

    The losses of a step are added up and divided by num_items_in_batch, so gradient accumulation and several processes
    give the gradient of one large batch. The strength is lambda_0 * t / T with the trainer's step t = global_step and
    T = max_steps; every log of the training has it as "isda_strength". Checkpoints get a file isda.safetensors with the
    statistics, which ``resume_from_checkpoint`` reads. Evaluation is cross-entropy and leaves the statistics alone.
    Models of problem_type multi_label_classification get ISDABCELoss.

    Args:
        lambda_0: strength at the end of training; "auto" for one that each evaluation of the training sets, for which
            ``eval_strategy`` must not be "no".
        classifier: the last layer or its name, if ``ISDALoss.attach`` does not find it.
        resume_from_checkpoint: the checkpoint to resume from, only needed if it was moved since it was saved.
        schedule: "constant" for a strength of lambda_0 from the first step on.
        covariance: see ISDALoss, as all that follow; None for the default of ``ISDALoss.attach``.
        bound: "jensen" or "tilted".
        rank: of covariance="low_rank".
        decay: how the statistics forget old features.
        label_smoothing: that of TrainingArguments by default.
        class_weight: (C,) weights of the classes.
        tilt_steps: of bound="tilted".
        max_ratio: upper limit of the variance term.
        validate: whether labels and features are checked.
        **settings: others of ISDALoss.

    Attributes:
        criterion: the ISDALoss of the current or last training, None before there is a Trainer.

    Example:
        >>> isda = ISDATraining(lambda_0=0.5, covariance="diagonal")
        >>> more = {"compute_loss_func": isda.loss, "callbacks": [isda]}  # for Trainer(model, args, **more)
    """

    def __init__(
        self,
        lambda_0: float | str = 0.5,
        *,
        classifier: nn.Module | str | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | None = None,
        schedule: str | None = None,
        covariance: str | CovarianceModel | None = None,
        bound: str | None = None,
        rank: int | None = None,
        decay: float | None = None,
        label_smoothing: float | None = None,
        class_weight: Tensor | None = None,
        tilt_steps: int | None = None,
        max_ratio: float | None = None,
        validate: bool | None = None,
        **settings: Any,
    ) -> None:
        for name, reason in _RESERVED.items():
            if name in settings:
                raise ValueError(f"{name} must not be given, because {reason}, got {settings[name]!r}")
        check_strength(lambda_0, schedule=schedule)
        self.lambda_0, self.classifier, self.schedule = lambda_0, classifier, schedule
        self.settings = settings | given(
            schedule=schedule,
            covariance=covariance,
            bound=bound,
            rank=rank,
            decay=decay,
            label_smoothing=label_smoothing,
            class_weight=class_weight,
            tilt_steps=tilt_steps,
            max_ratio=max_ratio,
            validate=validate,
        )
        self.resume_from_checkpoint = resume_from_checkpoint
        self.criterion: AugmentedLoss | None = None
        self._called = self._training = False
        self._held_out: HeldOutLogits | None = None
        self._matched_at: int | None = None
        self._epochs = 0

    def loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The ``compute_loss_func`` of the Trainer: the losses of a batch, divided by the labels of the whole step.

        Args:
            outputs: of the model: logits (N, C), of tokens (N, L, C) or of pixels (N, C, H, W), as a tensor, first in
                a tuple, or under "logits".
            labels: classes (N,), (N, L) or (N, H', W'), -100 to ignore; or distributions (N, C).
            num_items_in_batch: labels in all batches of this step of the optimiser; those of this batch by default.
        """
        criterion = self._attached()
        if labels is None:
            raise ValueError("labels must be in every batch, under that name, got none")
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        logits = logits if isinstance(logits, Tensor) else logits[0]
        # Trainer evaluates without gradients, before and after training too.
        training = torch.is_grad_enabled()
        if training and not self._training:  # attached by a trainer before, and detached since
            raise ValueError(_NO_CALLBACK)
        self._called |= training
        criterion.train(training)
        if not training:
            criterion.to(logits.device)
            if logits.ndim == 3:  # the criterion may not be attached: tokens as rows
                logits, labels = logits.flatten(0, 1), labels.flatten(0, 1)
            if self._held_out is not None:
                self._held_out.add(logits, labels)
        total = criterion(logits, labels)
        items: Tensor | float = labels.ne(_IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        if is_soft(labels) and not isinstance(criterion, ISDABCELoss):
            items = items / criterion.num_classes  # every share of a distribution was counted
        return total / (items.clamp_min(1) if isinstance(items, Tensor) else max(items, 1))

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The same as ``loss``, for the object itself as ``compute_loss_func``."""
        return self.loss(outputs, labels, num_items_in_batch)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Create a criterion for evaluations before any training; the model is not changed."""
        self._attach(model, args, 1).detach()

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Start without statistics, or with those of the checkpoint."""
        if args.n_gpu > 1:
            raise ValueError(
                f"the number of GPUs of one process must be 1, got {args.n_gpu}, whose model copies overwrite each "
                "other's features; start one process per GPU with torchrun or accelerate launch"
            )
        if self.lambda_0 == AUTO and args.eval_strategy == "no":
            raise ValueError("lambda_0='auto' needs an evaluation: pass eval_dataset and eval_strategy='epoch'")
        self._log_before_reporters()
        criterion = self._attach(model, args, state.max_steps)
        if state.global_step > 0:
            read_statistics(criterion, self._saved_statistics(args, state))
        criterion.set_step(state.global_step)
        state.stateful_callbacks[_KEY] = {"run": uuid.uuid4().hex, "folder": str(Path(args.output_dir).resolve())}
        self._training, self._epochs = True, 0
        self._held_out, self._matched_at = HeldOutLogits.of(criterion), None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Warn after the first epoch, and what is evaluated after it, if the strength is 0."""
        if self._epochs == 1:
            warn_of_no_strength(self._attached(), _EVALUATE)
        self._epochs += 1

    def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: Any = None, **_: Any) -> None:
        """Set the strength of lambda_0="auto"; of several evaluation sets the first counts."""
        if self._held_out is None:
            return
        own = any(name.startswith("eval_") for name in metrics or ())
        if own and self._called and self._matched_at != state.global_step:
            self._matched_at = state.global_step
            self._held_out.match()
        self._held_out.clear()

    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Predictions set nothing."""
        if self._held_out is not None:
            self._held_out.clear()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the strength to what is logged in training."""
        if self._training and logs is not None:
            strength = self._attached().strength
            logs[_LOGGED] = strength
            if state.log_history:  # has a copy of the logs already
                state.log_history[-1][_LOGGED] = strength

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the step of the optimiser."""
        if not self._called:
            raise ValueError(f"the loss of ISDATraining is not the compute_loss_func of the trainer; {_HOW}")
        self._attached().set_step(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the statistics into the checkpoint, in the process that saves it."""
        # A hyperparameter search does not report the folders of its trials, and never resumes one.
        if args.should_save and not args.save_only_model and not state.is_hyper_param_search:
            write_statistics(self._attached(), _checkpoint(args.output_dir, state) / _FILE, _origin(state))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach from the model; the criterion stays, for its statistics and for evaluations."""
        criterion = self._attached()
        if self._epochs == 1:
            warn_of_no_strength(criterion, _EVALUATE)
        self._training, self._held_out = False, None
        criterion.detach()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _attached(self) -> AugmentedLoss:
        if self.criterion is None:
            raise ValueError(_NO_CALLBACK)
        return self.criterion

    def _log_before_reporters(self) -> None:
        """Make this the first callback of the trainer: it calls those of TensorBoard and others before those of users.

        No callback is told which trainer calls it, so its handler is looked for among the callers.
        """
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            handler = frame.f_locals.get("self")
            if isinstance(handler, _CallbackHandler) and self in handler.callbacks:
                handler.callbacks.remove(self)
                handler.callbacks.insert(0, self)
                return

    def _attach(self, model: nn.Module, args: Any, total_steps: int) -> AugmentedLoss:
        self.criterion, settings = None, dict(self.settings)  # at most one set of statistics in memory
        problem = getattr(getattr(model, "config", None), "problem_type", None)
        if problem == "regression":
            raise ValueError("problem_type must be a classification, got 'regression', which has no classes")
        kind: type[AugmentedLoss] = ISDALoss
        if problem == "multi_label_classification":
            kind, settings["ignore_value"] = ISDABCELoss, float(_IGNORED)
        elif args.label_smoothing_factor:
            settings.setdefault("label_smoothing", args.label_smoothing_factor)
        steps = steps_for(self.lambda_0, self.schedule, total_steps)
        settings |= {"classifier": self.classifier, "reduction": "sum"}
        criterion = kind.attach(model, self.lambda_0, steps, **settings)
        if any(parameter.requires_grad for parameter in criterion.parameters()):
            criterion.detach()
            raise ValueError("covariance must not be one that is learnt by gradient: Trainer optimises the model alone")
        # Class weights may be on any device; the statistics are on that of the classifier.
        self.criterion = criterion.to(criterion.covariance.count.device)
        self._called, self._training, self._held_out = False, False, None
        return self.criterion

    def _saved_statistics(self, args: Any, state: Any) -> Path:
        """The file of the checkpoint that the trainer resumes from, whose folder callbacks do not get."""
        saved = state.stateful_callbacks.get(_KEY)
        if saved is None:
            raise ValueError(
                f"the checkpoint of step {state.global_step} must have been saved with ISDATraining to be resumed with "
                "it, got one without statistics; a new training can start from its weights"
            )
        folders = [_checkpoint(saved["folder"], state), _checkpoint(args.output_dir, state)]
        folders += [Path(folder) for folder in (args.resume_from_checkpoint, self.resume_from_checkpoint) if folder]
        files = [folder / _FILE for folder in folders]
        for file in files:
            if read_origin(file) == _origin(state):
                return file
        raise ValueError(
            f"the statistics of the checkpoint must be in one of {', '.join(dict.fromkeys(map(str, files)))}, got none "
            "that belongs to it; where it was moved, pass ISDATraining(resume_from_checkpoint=FOLDER)"
        )


def _checkpoint(folder: str, state: Any) -> Path:
    return Path(folder, f"checkpoint-{state.global_step}")


def _origin(state: Any) -> dict[str, str]:
    return {"run": state.stateful_callbacks[_KEY]["run"], "step": str(state.global_step)}
