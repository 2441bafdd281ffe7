"""From the files that a user names to rows to learn from, rows to judge by, and rows whose class is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from isda.checks import largest_feature
from isda.data.splits import hold_out
from isda.embeddings.csv_files import read_csv_rows
from isda.embeddings.npz_files import read_npz_rows
from isda.embeddings.rows import Rows

__all__ = ["Tables", "read_tables"]


@dataclass(frozen=True)
class Tables:
    """Rows by what they are for."""

    learnt: Rows
    """Labelled, to learn from."""
    judged: Rows
    """Labelled, to judge by."""
    asked: tuple[Rows, ...]
    """Unlabelled, of each file or part."""
    held_out: bool
    """Whether ``judged`` was split off the rows to learn from."""


def read_tables(
    path: Path,
    test: Path | None = None,
    *,
    split: float = 0.2,
    seed: int = 0,
    label: str | None = None,
    ignore: Sequence[str] = (),
) -> Tables:
    """Read a file of embeddings (.npz) or a table (.csv), and perhaps a second one to judge by.

    Args:
        path: of the file.
        test: another one, to judge by; by default the test part of the first, else a share of its labelled rows.
            Columns of two tables are matched by name.
        split: that share, of each class.
        seed: which rows these are.
        label: the column of labels of a table.
        ignore: columns of a table that are neither label nor feature.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is damaged or holds something else, has too few labels, or the two do not fit together.
    """
    if not 0 < split < 1:
        raise ValueError(f"split must lie strictly between 0 and 1, got {split}")
    rows, own = _read(path, label, ignore)
    if test is not None:
        first, second = _read(test, label, ignore, rows)
        own = first if second is None else second
    for part in (rows, own):
        _check_size(part)
    labelled = rows.take(rows.labelled)
    if len(np.unique(labelled.names)) < 2:
        raise ValueError(f"{path} must have labelled rows of at least two classes, got {_told(labelled)}")
    if own is None:
        learnt, judged = _held_out(labelled, split, seed)
        return Tables(learnt, judged, (rows.take(~rows.labelled),), held_out=True)
    _check_fit(labelled, own)
    return Tables(labelled, own.take(own.labelled), tuple(r.take(~r.labelled) for r in (rows, own)), held_out=False)


def _read(path: Path, label: str | None, ignore: Sequence[str], like: Rows | None = None) -> tuple[Rows, Rows | None]:
    if path.suffix.lower() == ".npz":
        if label is not None or ignore:
            raise ValueError(f"label and ignore name columns of a table, got the file of embeddings {path}")
        return read_npz_rows(path)
    return read_csv_rows(path, label, ignore, like), None


def _check_size(rows: Rows | None) -> None:
    """Raise a ValueError for features that are not finite, or whose squares are not."""
    if rows is None:
        return
    broken = int((~np.isfinite(rows.features).all(1)).sum())
    if broken:
        raise ValueError(f"features of {rows.source} must be finite, got {broken} rows whose are not")
    below = largest_feature(torch.float64)
    large = np.flatnonzero(np.abs(rows.features).max(1) >= below)
    if len(large):
        raise ValueError(
            f"features of {rows.source} must be smaller than {below:.2g} in magnitude, or their squares overflow, got "
            f"{np.abs(rows.features[large[0]]).max():.2g} in row {rows.row_numbers[large[0]]}; divide the feature by a "
            "constant, or leave it out"
        )


def _told(rows: Rows) -> str:
    names = np.unique(rows.names).tolist()
    return f"{len(rows)} of {', '.join(map(repr, names))}" if names else "none"


def _held_out(labelled: Rows, split: float, seed: int) -> tuple[Rows, Rows]:
    """A share of each class; the only row of a class stays, to be learnt from."""
    _, labels, counts = np.unique(labelled.names, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[labels] > 1)
    size = round(split * len(several))
    if not 0 < size < len(several):
        raise ValueError(f"split must leave rows to learn from and to judge by, got {split} of {len(several)} rows")
    held_out = several[hold_out(torch.from_numpy(labels[several].astype(np.int64)), size, seed).held_out.numpy()]
    learnt, judged = labelled.take(np.setdiff1d(np.arange(len(labels)), held_out)), labelled.take(held_out)
    lost = sorted(set(labelled.names.tolist()) - set(learnt.names.tolist()))
    if lost:
        raise ValueError(f"split must leave rows of every class to learn from, got {split}: it leaves no {lost[0]!r}")
    return learnt, judged


def _check_fit(learnt: Rows, test: Rows) -> None:
    if test.features.shape[1] != learnt.features.shape[1]:
        raise ValueError(
            f"test must have the {learnt.features.shape[1]} features of {learnt.source}, got {test.features.shape[1]} "
            f"in {test.source}"
        )
    unknown = sorted(set(test.names[test.labelled].tolist()) - set(learnt.names.tolist()))
    if unknown:
        raise ValueError(f"test must have classes of {learnt.source}, got {unknown[0]!r} in {test.source}")
