"""The strength of ISDATraining: lambda_0="auto" in the evaluations of a training, logs, settings, warnings."""

from __future__ import annotations

import gc
import inspect
import json
import warnings

import pytest
import torch
from huggingface_runs import (
    LAMBDA_0,
    RATE,
    Recording,
    StopAfter,
    arguments,
    collate,
    head_of,
    model_of,
    samples_of,
    trainer_of,
)
from states import EXACT, largest_difference
from transformers import Trainer

from isda import ISDALoss
from isda.integrations.huggingface import ISDATraining

EVERY_EPOCH = {"eval_strategy": "epoch", "num_train_epochs": 4}
BATCHES, HELD_OUT, WINDOWS = 10, 3, [4, 4, 2]
"""Training batches and evaluation batches per epoch, and training batches per step."""


@pytest.fixture(scope="module", autouse=True)
def what_is_imported_is_no_garbage():
    """Trainer collects garbage whenever it starts, which takes longer than the training."""
    gc.freeze()
    yield
    gc.unfreeze()


def plain_loop(task, batches):
    """The training of lambda_0="auto" by hand: one match after each epoch, to all of its held-out logits."""
    model = model_of(task).train()
    criterion = ISDALoss.attach(model, "auto", reduction="sum", classifier=head_of(task))
    strengths, remaining = [], iter(batches)
    while batch := next(remaining, None):
        epoch = [batch] + [next(remaining) for _ in range(BATCHES - 1)]
        for window in WINDOWS:
            parts, epoch = epoch[:window], epoch[window:]
            total = sum(criterion(logits_of(model, part), part["labels"]) for part in parts)
            (total / sum(int((part["labels"] != -100).sum()) for part in parts)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= RATE * parameter.grad
                        parameter.grad = None
        held_out = [next(remaining) for _ in range(HELD_OUT)]
        model.eval()
        with torch.no_grad():
            logits = torch.cat([logits_of(model, part) for part in held_out])
        strengths.append(criterion.match(logits, torch.cat([part["labels"] for part in held_out])))
        model.train()
    criterion.detach()
    return model, criterion, strengths


def logits_of(model, batch):
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits


class Watching(ISDATraining):
    """Its strength after each evaluation."""

    def on_evaluate(self, *args, **settings):
        super().on_evaluate(*args, **settings)
        self.strengths = [*getattr(self, "strengths", []), self.criterion.strength]


@pytest.mark.parametrize("task", ["sequence", "token", "segmentation"])
@pytest.mark.usefixtures("float64")
def test_auto_trains_like_a_plain_loop_that_matches_after_each_epoch(task, tmp_path):
    isda, recording = Watching("auto", classifier=head_of(task)), Recording()
    trainer = trainer_of(task, isda, arguments(tmp_path, **EVERY_EPOCH), collator=recording)
    generator = torch.Generator().manual_seed(7)
    held_out = samples_of(task, 52)[39:]
    for sample in held_out[::3]:  # labels that no model can know: the held-out loss is the larger one
        labels = sample["labels"]
        sample["labels"] = labels.where(labels == -100, torch.randint(3, labels.shape, generator=generator))
    trainer.eval_dataset = held_out
    trainer.train()
    model, criterion, expected = plain_loop(task, recording.batches)
    assert isda.strengths == pytest.approx(expected, rel=1e-9)
    assert expected[-1] > 0
    assert largest_difference(trainer.model, model) < EXACT
    assert largest_difference(isda.criterion.covariance, criterion.covariance) < EXACT


def test_auto_is_set_by_the_evaluations_of_a_training_alone(tmp_path):
    isda = ISDATraining("auto")
    trainer = trainer_of("sequence", isda, arguments(tmp_path, eval_on_start=True, **EVERY_EPOCH))
    trainer.evaluate()
    trainer.train()
    solutions = isda.criterion.schedule.solutions
    assert len(solutions) == 4
    trainer.evaluate(samples_of("sequence", 20)[15:])
    trainer.predict(samples_of("sequence", 5))
    assert isda.criterion.schedule.solutions == solutions


def test_of_several_evaluation_sets_the_first_one_sets_it(tmp_path):
    solutions = []
    held_out = samples_of("sequence", 52)[39:]
    for sets in (held_out, {"one": held_out, "other": samples_of("sequence", 20)[13:]}):
        isda = ISDATraining("auto")
        trainer = trainer_of("sequence", isda, arguments(tmp_path, **EVERY_EPOCH))
        trainer.eval_dataset = sets
        trainer.train()
        solutions.append(isda.criterion.schedule.solutions)
    assert solutions[0] == solutions[1]


def test_a_resumed_training_with_auto_ends_in_the_same_bits(tmp_path):
    sizes = {"per_device_train_batch_size": 65, "gradient_accumulation_steps": 1}
    saved = {**EVERY_EPOCH, **sizes, "num_train_epochs": 3, "save_strategy": "epoch"}

    def training(folder, *more):
        isda = ISDATraining("auto")
        # The samples that a match is based on are those of one epoch.
        trainer = trainer_of("gpt2", isda, arguments(tmp_path / folder, **saved), size=520, more=more)
        for sample in trainer.eval_dataset[::2]:
            sample["labels"] = (sample["labels"] + 1) % 3
        return trainer, isda

    whole, isda = training("whole")
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        training("cut", StopAfter(16))[0].train()
    trainer, again = training("cut")
    trainer.train(resume_from_checkpoint=True)
    assert isda.criterion.strength > 0
    assert again.criterion.schedule.solutions == isda.criterion.schedule.solutions
    assert largest_difference(trainer.model, whole.model) == 0
    assert largest_difference(again.criterion, isda.criterion) == 0


def test_auto_without_an_evaluation_is_refused_before_training(tmp_path):
    trainer = trainer_of("gpt2", ISDATraining("auto"), arguments(tmp_path))
    needs = "lambda_0='auto' needs an evaluation: pass eval_dataset and eval_strategy='epoch'"
    with pytest.raises(ValueError, match=needs):
        trainer.train()
    assert not trainer.model.score._forward_hooks
    with pytest.raises(ValueError, match="lambda_0 must be a finite number >= 0 or 'auto', got 'large'"):
        ISDATraining("large")
    with pytest.raises(ValueError, match="schedule must not be given with lambda_0='auto', got 'constant'"):
        ISDATraining("auto", schedule="constant")


def test_a_checkpoint_of_a_number_is_not_resumed_with_auto(tmp_path):
    changes = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, **EVERY_EPOCH}
    trainer_of("gpt2", ISDATraining(LAMBDA_0), arguments(tmp_path, **{**changes, "max_steps": 1})).train()
    with pytest.raises(ValueError, match=r"kind of lambda_0 \(a number or 'auto'\) that it was saved with"):
        trainer_of("gpt2", ISDATraining("auto"), arguments(tmp_path, **changes)).train(resume_from_checkpoint=True)


def test_a_constant_strength(tmp_path):
    isda = Watching(LAMBDA_0, schedule="constant")
    trainer_of("gpt2", isda, arguments(tmp_path, eval_strategy="steps", eval_steps=1, max_steps=2)).train()
    assert isda.strengths == [LAMBDA_0] * 2


# -- logs --------------------------------------------------------------------------------------------------------------


def test_every_log_of_a_training_has_the_strength(tmp_path, capsys):
    isda = ISDATraining(LAMBDA_0)
    often = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 6}
    trainer = trainer_of("gpt2", isda, arguments(tmp_path, **often))
    trainer.train()
    history = trainer.state.log_history
    assert len(history) == 6 + 2 + 1  # steps, evaluations, the summary
    assert [row["isda_strength"] for row in history] == pytest.approx([LAMBDA_0 * row["step"] / 6 for row in history])
    assert capsys.readouterr().out.count("'isda_strength'") == len(history)
    saved = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text(encoding="utf-8"))
    assert all("isda_strength" in row for row in saved["log_history"])
    assert "isda_strength" not in trainer.evaluate()


@pytest.mark.parametrize("late", [False, True])
def test_reporters_get_the_strength(late, tmp_path, monkeypatch):
    """Trainer calls TensorBoard before the callbacks of users, also before one that is added later."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    isda = ISDATraining(LAMBDA_0)
    trainer = Trainer(
        model_of("gpt2"),
        arguments(tmp_path, report_to=["tensorboard"], logging_steps=2),
        data_collator=collate,
        train_dataset=samples_of("gpt2", 38),
        compute_loss_func=isda.loss,
        callbacks=None if late else [isda],
    )
    if late:
        trainer.add_callback(isda)
    trainer.train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    events = reader.EventAccumulator(str(folder)).Reload().Scalars("train/isda_strength")
    logged = {event.step: event.value for event in events}
    assert logged == pytest.approx({2: LAMBDA_0 / 3, 4: LAMBDA_0 * 2 / 3, 6: LAMBDA_0})


# -- settings and warnings ---------------------------------------------------------------------------------------------


def test_settings_of_the_criterion_are_named():
    names = ["schedule", "covariance", "bound", "rank", "decay", "label_smoothing", "class_weight", "max_ratio"]
    parameters = inspect.signature(ISDATraining.__init__).parameters
    assert [name for name in names if name not in parameters] == []


def warnings_of(trainer):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.train()
    texts = [str(warning.message) for warning in seen]
    return [text for text in texts if "strength" in text or "total_steps" in text]


def test_an_epoch_of_auto_without_an_evaluation_is_warned_of_once(tmp_path):
    seldom = {"eval_strategy": "steps", "eval_steps": 100, "num_train_epochs": 3}
    (text,) = warnings_of(trainer_of("gpt2", ISDATraining("auto"), arguments(tmp_path, **seldom)))
    assert "is still 0 at the end of the first epoch, because no evaluation has set it" in text


@pytest.mark.parametrize("settings", [{}, {"lambda_0": "auto"}, {"schedule": "constant"}, {"lambda_0": 0.0}])
def test_other_trainings_warn_of_nothing(settings, tmp_path):
    args = arguments(tmp_path, **{**EVERY_EPOCH, "num_train_epochs": 2})
    assert warnings_of(trainer_of("gpt2", ISDATraining(**settings), args)) == []
