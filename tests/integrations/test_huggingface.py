"""transformers.Trainer with ISDATraining against a plain loop over the same batches."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from huggingface_runs import (
    CLASSES,
    LAMBDA_0,
    RATE,
    Recording,
    StopAfter,
    arguments,
    collate,
    head_of,
    model_of,
    plain_loop,
    samples_of,
    trainer_of,
)
from states import EXACT, largest_difference, rounding_of
from transformers import Trainer, TrainerState

from isda.integrations.huggingface import ISDATraining

WINDOWS = [4, 4, 2] * 2
"""Ten batches per epoch, the last of two samples, in steps of four."""


@pytest.fixture(scope="module", autouse=True)
def what_is_imported_is_no_garbage():
    """Trainer collects garbage whenever it starts, which takes longer than the training."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("image", {}),
        ("sequence", {"class_weight": torch.tensor([1.0, 2.0, 0.5]).double(), "label_smoothing": 0.1}),
        ("sequence", {"bound": "tilted", "covariance": "diagonal"}),
        ("token", {}),
        ("segmentation", {}),
        ("multi-label", {}),
    ],
    ids=["image", "sequence-weighted", "sequence-tilted", "token", "segmentation", "multi-label"],
)
@pytest.mark.usefixtures("float64")
def test_it_trains_like_a_plain_loop_over_the_same_batches(task, settings, tmp_path):
    assert_trains_like_a_plain_loop(task, {"classifier": head_of(task)}, settings, tmp_path)


@pytest.mark.parametrize("task", ["gpt2", "llama", "lora"])
@pytest.mark.usefixtures("float64")
def test_last_tokens_and_adapters_train_like_a_plain_loop_too(task, tmp_path):
    """The logits of a sequence are picked from those of its tokens; peft trains a copy of the classifier."""
    if task == "lora":
        pytest.importorskip("peft")
    assert_trains_like_a_plain_loop(task, {}, {}, tmp_path)


def assert_trains_like_a_plain_loop(task, classifier, settings, folder):
    isda, recording = ISDATraining(LAMBDA_0, **classifier, **settings), Recording()
    trainer = trainer_of(task, isda, arguments(folder), collator=recording)
    trainer.train()
    model, criterion = plain_loop(task, recording.batches, WINDOWS, **settings)
    assert trainer.state.global_step == len(WINDOWS)
    assert largest_difference(trainer.model, model) < EXACT
    assert largest_difference(isda.criterion.covariance, criterion.covariance) < EXACT
    without, _ = plain_loop(task, recording.batches, WINDOWS, 0.0, **settings)
    assert largest_difference(trainer.model, without) > 1e-3, "the augmentation changed nothing"
    assert not trainer.model.get_submodule(head_of(task))._forward_hooks, "the model is as it was"


def test_the_object_itself_may_stand_for_its_loss(tmp_path):
    trained = []
    for choose in (lambda isda: isda.loss, lambda isda: isda):
        isda = ISDATraining(LAMBDA_0)
        trainer = Trainer(
            model_of("gpt2"),
            arguments(tmp_path, max_steps=2),
            data_collator=collate,
            train_dataset=samples_of("gpt2", 38),
            compute_loss_func=choose(isda),
            callbacks=[isda],
        )
        trainer.train()
        trained.append(trainer.model)
    assert largest_difference(*trained) == 0


def test_the_strength_follows_the_steps_of_the_trainer(tmp_path):
    strengths = []

    class Watching(ISDATraining):
        def on_step_begin(self, args, state, control, **_):
            strengths.append(self.criterion.strength)

    isda = Watching(LAMBDA_0)
    trainer_of("sequence", isda, arguments(tmp_path)).train()
    assert strengths == pytest.approx([LAMBDA_0 * step / 6 for step in range(6)])
    assert isda.criterion.strength == LAMBDA_0


def test_mixed_precision_and_recomputed_activations_change_little(tmp_path):
    trained = []
    for changes in ({}, {"gradient_checkpointing": True}, {"bf16": True}):
        trainer = trainer_of("token", ISDATraining(LAMBDA_0), arguments(tmp_path, max_steps=3, **changes))
        trainer.train()
        trained.append(trainer.model)
    plain, recomputed, narrow = trained
    assert largest_difference(plain, recomputed) < rounding_of(3)
    # bfloat16 has 8 bits: a value of a layer is off by 1/256 of it, a parameter by the rate times that of its gradient.
    assert 1e-6 < largest_difference(plain, narrow) < 3 * RATE / 256


def test_labels_are_smoothed_as_the_training_arguments_say(tmp_path):
    trained = []
    for isda, smoothing in ((ISDATraining(LAMBDA_0), 0.2), (ISDATraining(LAMBDA_0, label_smoothing=0.2), 0.0)):
        trainer = trainer_of("sequence", isda, arguments(tmp_path, max_steps=2, label_smoothing_factor=smoothing))
        trainer.train()
        trained.append(trainer.model)
    assert largest_difference(*trained) == 0


@pytest.mark.usefixtures("float64")
def test_shares_of_classes_train_like_the_class_that_has_it_all(tmp_path):
    """Every share is counted by Trainer; a sample counts once all the same."""
    trained = []
    for soft in (False, True):

        def shares(samples, soft=soft):
            batch = collate(samples)
            return {**batch, "labels": F.one_hot(batch["labels"], CLASSES).double()} if soft else batch

        trainer = trainer_of("sequence", ISDATraining(LAMBDA_0), arguments(tmp_path, max_steps=3), collator=shares)
        trainer.train()
        trained.append(trainer.model)
    assert largest_difference(*trained) < EXACT


# -- evaluation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["image", "token", "multi-label"])
def test_evaluation_is_cross_entropy_and_changes_nothing(task, tmp_path):
    isda = ISDATraining(LAMBDA_0)
    trainer = trainer_of(task, isda, arguments(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1))
    # One batch, because Trainer averages the means of batches.
    trainer.args.per_device_eval_batch_size = 13

    def expected():
        batch = collate(samples_of(task, 13))
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = trainer.model.eval()(**batch).logits
        if task == "multi-label":
            return float(F.binary_cross_entropy_with_logits(logits, labels))
        return float(F.cross_entropy(logits.flatten(0, -2), labels.flatten()))

    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected(), rel=rounding_of(1))
    trainer.train()
    before = {name: tensor.clone() for name, tensor in isda.criterion.state_dict().items()}
    assert task == "token" or isda.criterion.covariance.count.sum() == 38
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected(), rel=rounding_of(1))
    assert trainer.predict(samples_of(task, 5)).metrics["test_loss"] > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in isda.criterion.state_dict().items())


def test_evaluations_during_training_do_not_change_it(tmp_path):
    trained = []
    for changes in ({}, {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}):
        isda = ISDATraining(LAMBDA_0)
        trainer = trainer_of("token", isda, arguments(tmp_path, max_steps=3, **changes))
        trainer.train()
        trained.append((trainer.model, isda.criterion))
    assert largest_difference(trained[0][0], trained[1][0]) == 0
    assert largest_difference(trained[0][1], trained[1][1]) == 0


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A training to the end, and the folder of one that was stopped after four of its six steps, saved every two."""
    folder = tmp_path_factory.mktemp("interrupted")
    isda = ISDATraining(LAMBDA_0)
    whole = trainer_of("token", isda, arguments(folder / "whole"))
    whole.train()
    args = arguments(folder / "cut", save_strategy="steps", save_steps=2)
    stopped = trainer_of("token", ISDATraining(LAMBDA_0), args, more=[StopAfter(4)])
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    return whole.model, isda.criterion, folder / "cut"


def resumed(folder, isda, checkpoint):
    trainer = trainer_of("token", isda, arguments(folder, save_strategy="steps", save_steps=2))
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.model


@pytest.mark.parametrize("checkpoint", [True, "checkpoint-2"], ids=["the last one", "an earlier one"])
def test_an_interrupted_training_ends_in_the_same_bits(checkpoint, interrupted, tmp_path):
    model, criterion, cut = interrupted
    folder = Path(shutil.copytree(cut, tmp_path / "copy"))
    isda = ISDATraining(LAMBDA_0)
    chosen = checkpoint if checkpoint is True else folder / checkpoint
    assert largest_difference(model, resumed(folder, isda, chosen)) == 0
    assert largest_difference(criterion, isda.criterion) == 0


def test_adapters_and_statistics_are_resumed_in_the_same_bits(tmp_path):
    pytest.importorskip("peft")
    isda = ISDATraining(LAMBDA_0)
    whole = trainer_of("lora", isda, arguments(tmp_path / "whole"))
    whole.train()
    args = arguments(tmp_path / "cut", save_strategy="steps", save_steps=2)
    with pytest.raises(KeyboardInterrupt):
        trainer_of("lora", ISDATraining(LAMBDA_0), args, more=[StopAfter(4)]).train()
    again = ISDATraining(LAMBDA_0)
    trainer = trainer_of("lora", again, args)
    trainer.train(resume_from_checkpoint=True)
    assert largest_difference(whole.model, trainer.model) == 0
    assert largest_difference(isda.criterion, again.criterion) == 0


def test_a_training_goes_on_in_another_folder_and_from_there_again(interrupted, tmp_path):
    model, criterion, cut = interrupted
    isda = ISDATraining(LAMBDA_0)
    assert largest_difference(model, resumed(tmp_path, isda, cut / "checkpoint-2")) == 0
    assert largest_difference(criterion, isda.criterion) == 0
    assert largest_difference(model, resumed(tmp_path, ISDATraining(LAMBDA_0), tmp_path / "checkpoint-4")) == 0


def test_a_checkpoint_that_was_moved_is_named(interrupted, tmp_path):
    model, _, cut = interrupted
    moved = Path(shutil.copytree(cut / "checkpoint-4", tmp_path / "elsewhere"))
    hidden = cut.with_name("hidden")
    cut.rename(hidden)
    try:
        with pytest.raises(ValueError, match="where it was moved, pass ISDATraining"):
            resumed(tmp_path, ISDATraining(LAMBDA_0), moved)
        isda = ISDATraining(LAMBDA_0, resume_from_checkpoint=moved)
        assert largest_difference(model, resumed(tmp_path, isda, moved)) == 0
    finally:
        hidden.rename(cut)


def test_the_statistics_of_another_training_are_not_taken(interrupted, tmp_path):
    """A folder with a checkpoint of the same step, but another run's."""
    _, _, cut = interrupted
    mine = Path(shutil.copytree(cut, tmp_path / "mine"))
    other = arguments(tmp_path / "other", save_strategy="steps", save_steps=2, max_steps=2)
    trainer_of("token", ISDATraining(LAMBDA_0), other).train()
    theirs = tmp_path / "other" / "checkpoint-2" / "isda.safetensors"
    hidden = cut.with_name("hidden")
    cut.rename(hidden)
    try:
        shutil.copy(theirs, mine / "checkpoint-2" / "isda.safetensors")
        with pytest.raises(ValueError, match="got none that belongs to it"):
            resumed(mine, ISDATraining(LAMBDA_0), mine / "checkpoint-2")
    finally:
        hidden.rename(cut)


def test_other_settings_than_those_saved_are_refused(interrupted, tmp_path):
    _, _, cut = interrupted
    with pytest.raises(ValueError, match=r"covariance\.scatter \(3, 8, 8\).*resume with the covariance"):
        resumed(tmp_path, ISDATraining(LAMBDA_0, covariance="diagonal"), cut / "checkpoint-2")


def test_a_checkpoint_without_statistics_is_refused(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    Trainer(model_of("token"), args, data_collator=collate, train_dataset=samples_of("token", 38)).train()
    with pytest.raises(ValueError, match="the checkpoint of step 1 must have been saved with ISDATraining"):
        resumed(tmp_path, ISDATraining(LAMBDA_0), True)


def test_the_model_of_a_checkpoint_loads_without_isda(interrupted):
    _, _, cut = interrupted
    model = type(model_of("token")).from_pretrained(cut / "checkpoint-4")
    assert not [name for name in model.state_dict() if "isda" in name or "covariance" in name]


# -- refusals ----------------------------------------------------------------------------------------------------------


NO_CALLBACK = (
    r"^ISDATraining is not among the callbacks of the trainer that uses its loss; pass the same object as both: .*"
    r"compute_loss_func=isda\.loss, callbacks=\[isda\]\)$"
)


def plain_trainer(folder, **given):
    """A trainer of a token classifier."""
    return Trainer(
        model_of("token"), arguments(folder), data_collator=collate, train_dataset=samples_of("token", 38), **given
    )


def test_the_callback_is_needed_beside_the_loss(tmp_path):
    isda = ISDATraining(LAMBDA_0)
    with pytest.raises(ValueError, match=NO_CALLBACK):
        plain_trainer(tmp_path, compute_loss_func=isda.loss).train()


def test_the_callback_must_be_the_object_of_the_loss(tmp_path):
    isda, other = ISDATraining(LAMBDA_0), ISDATraining(LAMBDA_0)
    with pytest.raises(ValueError, match=NO_CALLBACK):
        plain_trainer(tmp_path, compute_loss_func=isda.loss, callbacks=[other]).train()


def test_the_callback_is_needed_in_every_trainer(tmp_path):
    isda = ISDATraining(LAMBDA_0)
    plain_trainer(tmp_path / "first", compute_loss_func=isda.loss, callbacks=[isda])
    with pytest.raises(ValueError, match=NO_CALLBACK):
        plain_trainer(tmp_path / "second", compute_loss_func=isda.loss).train()


def test_the_loss_is_needed_beside_the_callback(tmp_path):
    trainer = plain_trainer(tmp_path, callbacks=[ISDATraining(LAMBDA_0)])
    with pytest.raises(
        ValueError, match=r"^the loss of ISDATraining is not the compute_loss_func .* callbacks=\[isda\]"
    ):
        trainer.train()


@pytest.mark.parametrize("name", ["reduction", "ignore_index", "ignore_value", "total_steps"])
def test_what_the_trainer_decides_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must not be given, because .*, got 7"):
        ISDATraining(LAMBDA_0, **{name: 7})


@pytest.mark.parametrize("name", ["num_classes", "feature_dim"])
def test_what_the_classifier_has_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} must not be given, because the classifier has it, got 3"):
        trainer_of("gpt2", ISDATraining(LAMBDA_0, **{name: 3}), arguments(tmp_path))


def test_a_model_in_the_place_of_the_strength_is_refused():
    with pytest.raises(
        ValueError, match="lambda_0 must be a finite number >= 0 or 'auto', got GPT2ForSequenceClassification"
    ):
        ISDATraining(model_of("gpt2"))


def test_a_learnt_covariance_is_refused(tmp_path):
    with pytest.raises(ValueError, match="learnt by gradient"):
        trainer_of("token", ISDATraining(LAMBDA_0, covariance="learned"), arguments(tmp_path))


def test_regression_is_refused(tmp_path):
    model = model_of("sequence")
    model.config.problem_type = "regression"
    with pytest.raises(ValueError, match="problem_type must be a classification, got 'regression'"):
        Trainer(model, arguments(tmp_path), callbacks=[ISDATraining(LAMBDA_0)])


def test_one_process_for_several_gpus_is_refused(tmp_path):
    trainer = trainer_of("token", ISDATraining(LAMBDA_0), arguments(tmp_path))
    trainer.args._n_gpu = 2
    with pytest.raises(ValueError, match=r"must be 1, got 2.*torchrun"):
        trainer.train()


def test_batches_without_labels_are_refused(tmp_path):
    def unlabelled(samples):
        return {name: tensor for name, tensor in collate(samples).items() if name != "labels"}

    trainer = trainer_of("token", ISDATraining(LAMBDA_0), arguments(tmp_path), collator=unlabelled)
    with pytest.raises(ValueError, match="labels must be in every batch"):
        trainer.train()


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_step_on_a_device_waits_for_nothing(accelerator, tmp_path):
    """What Trainer calls, in its order, for a model on another device."""
    with accelerator:
        args, state, control = arguments(tmp_path), TrainerState(max_steps=20), None
        model = model_of("token").to("pretend")
        isda = ISDATraining(LAMBDA_0, class_weight=torch.tensor([1.0, 2.0, 0.5]))
        isda.on_train_begin(args, state, control, model=model)
        batch = {name: tensor.to("pretend") for name, tensor in collate(samples_of("token", 4)).items()}
        labels = batch.pop("labels")
        for _ in range(4):  # the first steps look whether the logits are the classifier's, and which classes were seen
            accelerator.waits.clear()
            isda.loss(model(**batch), labels, labels.ne(-100).sum()).backward()
            state.global_step += 1
            isda.on_step_end(args, state, control)
        waits = list(accelerator.waits)
    assert isda.criterion.strength == LAMBDA_0 * 4 / 20
    assert waits == []
