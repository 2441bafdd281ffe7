"""Tiny Hugging Face models, their data, the Trainer with ISDA, and the plain loop it has to equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from isda import ISDABCELoss, ISDALoss
from isda.integrations.huggingface import ISDATraining

transformers.utils.logging.set_verbosity_error()
LAMBDA_0, RATE, CLASSES = 3.0, 0.2, 3
SHARED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
"""What each of two processes does, where one alone makes batches of 4 in steps of 2."""
_BERT = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": CLASSES,
    "initializer_range": 0.3,
}
_PADDING = 19
_CAUSAL = {"vocab_size": 20, "pad_token_id": _PADDING, "num_labels": CLASSES, "initializer_range": 0.3}


def model_of(task: str) -> Any:
    torch.manual_seed(0)
    if task == "image":
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = transformers.ViTConfig(image_size=4, patch_size=2, num_channels=1, num_labels=CLASSES, **sizes)
        return transformers.ViTForImageClassification(config)
    if task == "segmentation":
        names = {"hidden_sizes": 8, "depths": 1, "num_attention_heads": 2, "mlp_ratios": 1, "sr_ratios": 1}
        stages = {name: [value] * 4 for name, value in names.items()}
        none = {"classifier_dropout_prob": 0.0, "drop_path_rate": 0.0}
        config = transformers.SegformerConfig(
            num_channels=1, num_labels=CLASSES, decoder_hidden_size=8, initializer_range=0.3, **stages, **none
        )
        return transformers.SegformerForSemanticSegmentation(config)
    if task == "gpt2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(n_positions=8, n_embd=8, n_layer=1, n_head=2, **_CAUSAL, **none)
        return transformers.GPT2ForSequenceClassification(config)
    if task == "llama":
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**_CAUSAL, **sizes))
    if task == "lora":
        import peft

        return peft.get_peft_model(model_of("sequence"), peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4))
    if task == "token":
        return transformers.BertForTokenClassification(transformers.BertConfig(**_BERT))
    problem = "multi_label_classification" if task == "multi-label" else None
    return transformers.BertForSequenceClassification(transformers.BertConfig(**_BERT, problem_type=problem))


def head_of(task: str) -> str:
    special = {
        "segmentation": "decode_head.classifier",
        "gpt2": "score",
        "llama": "score",
        "lora": "base_model.model.classifier.modules_to_save.default",
    }
    return special.get(task, "classifier")


def samples_of(task: str, size: int) -> list[dict[str, Tensor]]:
    """Inputs that tell the classes apart, a little; of the tokens, some samples have many labels and others few."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for number in range(size):
        label = number % CLASSES
        tokens = torch.randint(20, (6,), generator=generator) // 3 + 4 * label
        if task == "image":
            noise = torch.randn(1, 4, 4, generator=generator)
            samples.append({"pixel_values": noise + label - 1, "labels": torch.tensor(label)})
        elif task == "segmentation":
            labels = torch.randint(CLASSES, (8, 8), generator=generator)
            pixels = labels.to(torch.get_default_dtype()).repeat_interleave(2, 0).repeat_interleave(2, 1)
            labels[: number % 5] = -100
            samples.append({"pixel_values": pixels.unsqueeze(0) - 1, "labels": labels})
        elif task == "token":
            labels = torch.randint(CLASSES, (6,), generator=generator)
            labels[number % 5 + 1 :] = -100
            samples.append({"input_ids": tokens, "labels": labels})
        elif task == "multi-label":
            samples.append({"input_ids": tokens, "labels": torch.rand(CLASSES, generator=generator).round()})
        elif task in ("gpt2", "llama"):
            tokens[number % 5 + 1 :] = _PADDING
            samples.append({"input_ids": tokens, "labels": torch.tensor(label)})
        else:
            samples.append({"input_ids": tokens, "labels": torch.tensor(label)})
    return samples


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


class Recording:
    """A collator that remembers the batches it has made."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = collate(samples)
        self.batches.append({name: tensor.clone() for name, tensor in batch.items()})
        return batch


class StopAfter(TrainerCallback):
    """The power fails after a step that has been saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 5,
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


def trainer_of(
    task: str, isda: ISDATraining, args: TrainingArguments, *, size: int = 38, collator: Any = collate, more: Any = ()
) -> Trainer:
    samples = samples_of(task, size)
    return Trainer(
        model_of(task),
        args,
        data_collator=collator,
        train_dataset=samples,
        eval_dataset=samples[:13],
        compute_loss_func=isda.loss,
        callbacks=[isda, *more],
    )


def plain_loop(
    task: str, batches: list[dict[str, Tensor]], windows: list[int], lambda_0: float = LAMBDA_0, **settings: Any
) -> tuple[Any, Any]:
    """Sums of losses over the labels of all batches of a step, features and weight by hand, SGD."""
    model = model_of(task).train()
    head, caught = model.get_submodule(head_of(task)), []
    head.register_forward_hook(lambda _, inputs, output: caught.append(inputs[0]))
    kind = ISDABCELoss if task == "multi-label" else ISDALoss
    criterion = kind(CLASSES, head.weight.shape[1], lambda_0, reduction="sum", **settings)
    remaining = iter(batches)
    for step, window in enumerate(windows):
        parts = [next(remaining) for _ in range(window)]
        items = sum(int((part["labels"] != -100).sum()) for part in parts)
        total = torch.zeros(())
        for part in parts:
            inputs = {name: tensor for name, tensor in part.items() if name != "labels"}
            logits, labels, features = model(**inputs).logits, part["labels"], caught.pop()
            if task == "token":
                logits, labels, features = logits.flatten(0, 1), labels.flatten(), features.flatten(0, 1)
            if task in ("gpt2", "llama"):  # the logits of a sequence are those of its last token
                lengths = part["input_ids"].ne(_PADDING).sum(1)
                features = torch.stack([row[length - 1] for row, length in zip(features, lengths, strict=True)])
            total = total + criterion(
                logits, labels, features=features, weight=head.weight, strength=lambda_0 * step / len(windows)
            )
        (total / items).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
                    parameter.grad = None
    return model, criterion


def whole_and_resumed(folder: Path) -> dict[str, dict[str, Tensor]]:
    """What one of several processes ends with that train tokens: to the end; again, stopped and resumed; with auto."""
    cut = {**SHARED, "save_strategy": "steps", "save_steps": 3}
    runs = {"whole": ("whole", SHARED, False), "stopped": ("cut", cut, False), "resumed": ("cut", cut, True)}
    ended = {}
    for name, (place, settings, resume) in runs.items():
        isda, more = ISDATraining(LAMBDA_0), [StopAfter(3)] if name == "stopped" else []
        trainer = trainer_of("token", isda, arguments(folder / place, **settings), size=40, more=more)
        try:
            trainer.train(resume_from_checkpoint=resume)
        except KeyboardInterrupt:
            dist.barrier()  # the process that saves may be behind
        ended[f"{name} model"], ended[f"{name} statistics"] = trainer.model.state_dict(), isda.criterion.state_dict()
    isda = ISDATraining("auto")
    trainer = trainer_of("token", isda, arguments(folder / "auto", eval_strategy="epoch", **SHARED), size=40)
    trainer.train()
    ended["auto model"], ended["auto statistics"] = trainer.model.state_dict(), isda.criterion.state_dict()
    return ended
