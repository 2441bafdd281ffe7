"""transformers.Trainer with ISDATraining against a plain loop over the same batches."""

import gc
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from plain_training import CLASSES, LAMBDA_0, TOLERANCE, difference
from transformers import Trainer, TrainerCallback, TrainingArguments

from isda import ISDABCELoss, ISDALoss
from isda.integrations.huggingface import ISDATraining

transformers.utils.logging.set_verbosity_error()
RATE, PADDING, SIZE, FORWARDS = 0.2, 19, 38, 20
"""Ten batches of four per epoch, the last of two samples, in steps of four, four and two; two epochs."""
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
TEXT = {"vocab_size": 20, "num_labels": CLASSES, "initializer_range": 0.3}
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**SMALL, **TEXT, **NONE, "max_position_embeddings": 8}


@pytest.fixture(scope="module", autouse=True)
def what_is_imported_is_no_garbage():
    """Trainer collects garbage whenever it starts, which takes longer than the training."""
    gc.freeze()
    yield
    gc.unfreeze()


def model_of(task):
    torch.manual_seed(0)
    if task == "image":
        config = transformers.ViTConfig(image_size=4, patch_size=2, num_channels=1, num_labels=CLASSES, **SMALL)
        return transformers.ViTForImageClassification(config)
    if task == "last token":
        config = transformers.LlamaConfig(pad_token_id=PADDING, **SMALL, **TEXT)
        return transformers.LlamaForSequenceClassification(config)
    if task == "lora":
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(model_of("sequence"), peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4))
    if task == "token":
        return transformers.BertForTokenClassification(transformers.BertConfig(**BERT))
    problem = "multi_label_classification" if task == "multi-label" else None
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, problem_type=problem))


def samples_of(task, size=SIZE):
    """Inputs that tell the classes apart, a little; of the tokens, some samples have many labels and others few."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for number in range(size):
        label = number % CLASSES
        tokens, labels = torch.randint(20, (6,), generator=generator) // 3 + 4 * label, torch.tensor(label)
        inputs = {"input_ids": tokens}
        if task == "image":
            inputs = {"pixel_values": torch.randn(1, 4, 4, generator=generator) + label - 1}
        elif task == "token":
            labels = torch.randint(CLASSES, (6,), generator=generator)
            labels[number % 5 + 1 :] = -100
        elif task == "multi-label":
            labels = torch.rand(CLASSES, generator=generator).round()
        elif task == "last token":
            tokens[number % 5 + 1 :] = PADDING
        samples.append({**inputs, "labels": labels})
    return samples


def collate(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


class Recording:
    """A collator that remembers the batches it has made."""

    def __init__(self):
        self.batches = []

    def __call__(self, samples):
        batch = collate(samples)
        self.batches.append({name: tensor.clone() for name, tensor in batch.items()})
        return batch


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 13,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 2,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**{**settings, **changes})


def trainer_of(task, isda, args, collator=collate, more=()):
    samples = samples_of(task)
    given = {"compute_loss_func": isda.loss, "callbacks": [isda, *more]}
    data = {"train_dataset": samples, "eval_dataset": samples[:13], "data_collator": collator}
    return Trainer(model_of(task), args, **data, **given)


def plain_loop(task, batches, **settings):
    """Sums of losses over the labels of all batches of a step, features and weight by hand, SGD."""
    model, caught = model_of(task).train(), []
    head = model.classifier.modules_to_save.default if task == "lora" else getattr(model, "classifier", None)
    head = model.score if head is None else head
    head.register_forward_hook(lambda _, inputs, output: caught.append(inputs[0]))
    kind = ISDABCELoss if task == "multi-label" else ISDALoss
    lambda_0 = settings.pop("lambda_0", LAMBDA_0)
    criterion = kind(CLASSES, head.weight.shape[1], lambda_0, FORWARDS, reduction="sum", **settings)
    remaining = iter(batches)
    for window in [4, 4, 2] * 2:
        parts = [next(remaining) for _ in range(window)]
        items = sum(int((part["labels"] != -100).sum()) for part in parts)
        for part in parts:
            inputs = {name: tensor for name, tensor in part.items() if name != "labels"}
            logits, labels, features = model(**inputs).logits, part["labels"], caught.pop()
            if task == "token":
                logits, labels, features = logits.flatten(0, 1), labels.flatten(), features.flatten(0, 1)
            if task == "last token":
                lengths = part["input_ids"].ne(PADDING).sum(1)
                features = torch.stack([row[length - 1] for row, length in zip(features, lengths, strict=True)])
            (criterion(logits, labels, features=features, weight=head.weight) / items).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
                    parameter.grad = None
    return model, criterion


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("image", {}),
        ("sequence", {"class_weight": torch.tensor([1.0, 2.0, 0.5]), "label_smoothing": 0.1}),
        ("token", {"bound": "tilted", "covariance": "diagonal"}),
        ("multi-label", {}),
        ("last token", {}),
        ("lora", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_trains_like_a_plain_loop_over_the_same_batches(task, settings, tmp_path):
    isda, recording = ISDATraining(LAMBDA_0, **settings), Recording()
    trainer = trainer_of(task, isda, arguments(tmp_path), recording)
    trainer.train()
    model, criterion = plain_loop(task, recording.batches, **settings)
    assert difference(trainer.model, model) < TOLERANCE
    assert difference(isda.criterion.covariance, criterion.covariance) < TOLERANCE
    assert isda.criterion.strength == pytest.approx(LAMBDA_0)
    without, _ = plain_loop(task, recording.batches, lambda_0=0.0, **settings)
    assert difference(trainer.model, without) > 10 * TOLERANCE, "the augmentation changed nothing"


def test_mixed_precision_and_recomputed_activations_change_little(tmp_path):
    trained = []
    for changes in ({}, {"gradient_checkpointing": True}, {"bf16": True}):
        isda = ISDATraining(LAMBDA_0)
        trainer = trainer_of("token", isda, arguments(tmp_path, max_steps=3, **changes))
        trainer.train()
        trained.append(trainer.model)
        assert isda.criterion.step == 10
    plain, recomputed, narrow = trained
    assert difference(plain, recomputed) < TOLERANCE
    # bfloat16 has 8 bits: a value of a layer is off by 1/256 of it, a parameter by the rate times that of its gradient.
    assert 1e-6 < difference(plain, narrow) < 3 * RATE / 256


def test_shares_of_classes_train_like_the_class_that_has_it_all(tmp_path):
    """Every share is counted by Trainer; a sample counts once all the same."""
    trained = []
    for soft in (False, True):

        def shares(samples, soft=soft):
            batch = collate(samples)
            return {**batch, "labels": F.one_hot(batch["labels"], CLASSES).float()} if soft else batch

        trainer = trainer_of("sequence", ISDATraining(LAMBDA_0), arguments(tmp_path, max_steps=3), shares)
        trainer.train()
        trained.append(trainer.model)
    assert difference(*trained) < TOLERANCE


@pytest.mark.parametrize("task", ["image", "token", "multi-label"])
def test_evaluation_is_cross_entropy_and_changes_nothing(task, tmp_path):
    isda = ISDATraining(LAMBDA_0)
    trainer = trainer_of(task, isda, arguments(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1))

    def expected():
        batch = collate(samples_of(task)[:13])
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = trainer.model.eval()(**batch).logits
        if task == "multi-label":
            return float(F.binary_cross_entropy_with_logits(logits, labels))
        return float(F.cross_entropy(logits.flatten(0, -2), labels.flatten()))

    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected(), rel=1e-4)
    trainer.train()
    before = {name: tensor.clone() for name, tensor in isda.criterion.state_dict().items()}
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected(), rel=1e-4)
    assert all(torch.equal(before[name], tensor) for name, tensor in isda.criterion.state_dict().items())


class StopAfter(TrainerCallback):
    """The power fails after a step that has been saved."""

    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A training to the end, and the folder of one that was stopped after four of its six steps, saved every two."""
    folder = tmp_path_factory.mktemp("interrupted")
    isda = ISDATraining(LAMBDA_0)
    whole = trainer_of("token", isda, arguments(folder / "whole"))
    whole.train()
    args = arguments(folder / "cut", save_strategy="steps", save_steps=2)
    with pytest.raises(KeyboardInterrupt):
        trainer_of("token", ISDATraining(LAMBDA_0), args, more=[StopAfter(4)]).train()
    return whole.model, isda.criterion, folder / "cut"


def resumed(folder, isda, checkpoint):
    trainer = trainer_of("token", isda, arguments(folder, save_strategy="steps", save_steps=2))
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.model


@pytest.mark.parametrize("place", ["the last one", "an earlier one", "of another folder", "of a moved folder"])
def test_an_interrupted_training_ends_as_one_that_was_not(place, interrupted, tmp_path):
    model, criterion, cut = interrupted
    isda, folder, checkpoint = ISDATraining(LAMBDA_0), tmp_path / "new", cut / "checkpoint-2"
    if place != "of another folder":
        folder = Path(shutil.copytree(cut, tmp_path / "copy"))
        checkpoint = folder / "checkpoint-2" if place != "the last one" else True
    hidden = cut.with_name("hidden")
    if place == "of a moved folder":
        cut.rename(hidden)
    try:
        assert difference(model, resumed(folder, isda, checkpoint)) < TOLERANCE
    finally:
        if hidden.exists():
            hidden.rename(cut)
    assert difference(criterion, isda.criterion) < TOLERANCE


def test_checkpoints_load_without_isda_and_those_without_statistics_are_refused(interrupted, tmp_path):
    _, _, cut = interrupted
    model = type(model_of("token")).from_pretrained(cut / "checkpoint-4")
    assert not [name for name in model.state_dict() if "isda" in name or "covariance" in name]
    args = arguments(tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    Trainer(model_of("token"), args, data_collator=collate, train_dataset=samples_of("token")).train()
    with pytest.raises(ValueError, match="the checkpoint must have been saved with ISDATraining"):
        resumed(tmp_path, ISDATraining(LAMBDA_0), True)


def test_every_log_of_a_training_has_strength_and_variance(tmp_path, monkeypatch):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    isda, reporter = ISDATraining(LAMBDA_0), transformers.integrations.TensorBoardCallback()
    trainer = trainer_of("sequence", isda, arguments(tmp_path, logging_steps=1), more=[reporter])
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["isda_strength"] for row in steps] == pytest.approx(
        [LAMBDA_0 * forwards / FORWARDS for forwards in (4, 8, 10, 14, 18, 20)]
    )
    assert all(row["isda_margin_variance"] > 0 for row in steps)
    assert "isda_strength" not in trainer.evaluate()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    events = reader.EventAccumulator(str(folder)).Reload().Scalars("train/isda_strength")
    assert events[-1].value == pytest.approx(LAMBDA_0)


def test_loss_and_callback_belong_together(tmp_path):
    isda, data = ISDATraining(LAMBDA_0), {"data_collator": collate, "train_dataset": samples_of("token")}
    with pytest.raises(ValueError, match="the loss of ISDATraining is not the compute_loss_func of this trainer"):
        Trainer(model_of("token"), arguments(tmp_path), callbacks=[isda], **data).train()
    trainer = Trainer(model_of("token"), arguments(tmp_path), compute_loss_func=ISDATraining(LAMBDA_0).loss, **data)
    with pytest.raises(ValueError, match="ISDATraining is not among the callbacks of this trainer"):
        trainer.train()


def test_bad_input_is_refused(tmp_path):
    model = model_of("sequence")
    model.config.problem_type = "regression"
    with pytest.raises(ValueError, match="problem_type must be a classification, got 'regression'"):
        Trainer(model, arguments(tmp_path), callbacks=[ISDATraining(LAMBDA_0)])

    def unlabelled(samples):
        return {name: tensor for name, tensor in collate(samples).items() if name != "labels"}

    trainer = trainer_of("token", ISDATraining(LAMBDA_0), arguments(tmp_path), unlabelled)
    with pytest.raises(ValueError, match="every batch must have its classes under the name labels"):
        trainer.train()
    trainer.args._n_gpu = 2
    with pytest.raises(ValueError, match="got 2: start a process for each with torchrun"):
        trainer.train()
