"""transformers.Trainer: a compute_loss_func, and a callback that sets the step and saves the statistics."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils.files import atomic_write
from isda.integrations.common import import_library
from isda.losses import AugmentedLoss, ISDABCELoss, ISDALoss
from isda.losses.schedule import StrengthSchedule
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
            "weights and classes that it was saved with"
        )
    criterion.load_state_dict(tensors)


_TrainerCallback: Any = import_library("transformers", "huggingface").TrainerCallback

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
_HOW = "Trainer(..., compute_loss_func=isda.loss, callbacks=[isda])"


class ISDATraining(_TrainerCallback):
    """Trains a Hugging Face classifier with ISDALoss instead of its model's loss.

    The losses of a step are added up and divided by num_items_in_batch, so gradient accumulation and several processes
    give the gradient of one large batch. The strength is lambda_0 * t / T with the trainer's step t = global_step and
    T = max_steps. Checkpoints get a file isda.safetensors with the statistics, which ``resume_from_checkpoint`` reads.
    Evaluation is cross-entropy and changes no state. Models of problem_type multi_label_classification get ISDABCELoss.

    Args:
        lambda_0: strength at the end of training.
        classifier: the last layer or its name, if ``ISDALoss.attach`` does not find it.
        resume_from_checkpoint: the checkpoint to resume from, only needed if it was moved since it was saved.
        **settings: see ISDALoss: covariance, bound, class_weight, label_smoothing (that of TrainingArguments by
            default), ...

    Attributes:
        criterion: the ISDALoss of the current or last training, None before there is a Trainer.

    Example:
        >>> isda = ISDATraining(lambda_0=0.5, covariance="diagonal")
        >>> more = {"compute_loss_func": isda.loss, "callbacks": [isda]}  # for Trainer(model, args, **more)
    """

    def __init__(
        self,
        lambda_0: float = 0.5,
        *,
        classifier: nn.Module | str | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        for name, reason in _RESERVED.items():
            if name in settings:
                raise ValueError(f"{name} must not be given, because {reason}, got {settings[name]!r}")
        StrengthSchedule(lambda_0, None)  # raises for invalid values
        self.lambda_0, self.classifier, self.settings = lambda_0, classifier, settings
        self.resume_from_checkpoint = resume_from_checkpoint
        self.criterion: AugmentedLoss | None = None
        self._called = False

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
        if logits.ndim == 3:  # tokens are rows like any others
            logits, labels = logits.flatten(0, 1), labels.flatten(0, 1)
        # Trainer evaluates without gradients, before and after training too.
        training = torch.is_grad_enabled()
        self._called |= training
        criterion.train(training)
        if not training:
            criterion.to(logits.device)
        total = criterion(logits, labels)
        items: Tensor | float = labels.ne(_IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        if is_soft(labels) and not isinstance(criterion, ISDABCELoss):
            items = items / logits.shape[1]  # every share of a distribution was counted
        return total / (items.clamp_min(1) if isinstance(items, Tensor) else max(items, 1))

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The same as ``loss``, for the object itself as ``compute_loss_func``."""
        return self.loss(outputs, labels, num_items_in_batch)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Create a criterion for evaluations before any training; the model is not changed."""
        self._attach(model, args).detach()

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Start without statistics, or with those of the checkpoint."""
        if args.n_gpu > 1:
            raise ValueError(
                f"the number of GPUs of one process must be 1, got {args.n_gpu}, whose model copies overwrite each "
                "other's features; start one process per GPU with torchrun or accelerate launch"
            )
        criterion = self._attach(model, args)
        criterion.total_steps = state.max_steps
        if state.global_step > 0:
            read_statistics(criterion, self._saved_statistics(args, state))
        criterion.set_step(state.global_step)
        state.stateful_callbacks[_KEY] = {"run": uuid.uuid4().hex, "folder": str(Path(args.output_dir).resolve())}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the step of the optimiser."""
        if not self._called:
            raise ValueError(f"the trainer must use the loss of this callback, {_HOW}")
        self._attached().set_step(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the statistics into the checkpoint, in the process that saves it."""
        # A hyperparameter search does not report the folders of its trials, and never resumes one.
        if args.should_save and not args.save_only_model and not state.is_hyper_param_search:
            write_statistics(self._attached(), _checkpoint(args.output_dir, state) / _FILE, _origin(state))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach from the model; the criterion stays, for its statistics and for evaluations."""
        self._attached().detach()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _attached(self) -> AugmentedLoss:
        if self.criterion is None:
            raise ValueError(f"the trainer must know the object whose loss it uses, {_HOW}")
        return self.criterion

    def _attach(self, model: nn.Module, args: Any) -> AugmentedLoss:
        self.criterion, settings = None, dict(self.settings)  # at most one set of statistics in memory
        problem = getattr(getattr(model, "config", None), "problem_type", None)
        if problem == "regression":
            raise ValueError("problem_type must be a classification, got 'regression', which has no classes")
        kind: type[AugmentedLoss] = ISDALoss
        if problem == "multi_label_classification":
            kind, settings["ignore_value"] = ISDABCELoss, float(_IGNORED)
        elif args.label_smoothing_factor:
            settings.setdefault("label_smoothing", args.label_smoothing_factor)
        criterion = kind.attach(model, self.lambda_0, classifier=self.classifier, reduction="sum", **settings)
        if any(parameter.requires_grad for parameter in criterion.parameters()):
            criterion.detach()
            raise ValueError("covariance must not be one that is learnt by gradient: Trainer optimises the model alone")
        # Class weights may be on any device; the statistics are on that of the classifier.
        self.criterion = criterion.to(criterion.covariance.count.device)
        self._called = False
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
        folders += [Path(given) for given in (args.resume_from_checkpoint, self.resume_from_checkpoint) if given]
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
