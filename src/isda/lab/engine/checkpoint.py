"""Checkpoints: one file each, written completely or not at all, and never unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from isda.lab.files import atomic_write


class State(NamedTuple):
    """The state of a job in a checkpoint."""

    tensors: dict[str, dict[str, Tensor]]
    """Groups of named tensors, such as the state_dict of the network."""
    rest: dict[str, Any]
    """Nested dicts and lists of numbers, strings and tensors."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is needed to resume a run after a step."""

    step: int
    state: State
    metrics: list[dict[str, Any]]
    """The metrics of the epochs so far."""


class Checkpoints:
    """The checkpoints of a run, ``step-000001234.pt``, of which the last few are kept.

    Args:
        folder: where they are.
        keep: how many to keep.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder, self.keep = folder, keep

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove those that are no longer kept.

        Raises:
            OSError: it could not be written; earlier checkpoints are unchanged.
        """
        state = {"tensors": checkpoint.state.tensors, "rest": checkpoint.state.rest}
        with atomic_write(self.folder / f"step-{checkpoint.step:09d}.pt") as unfinished:
            torch.save({"step": checkpoint.step, "metrics": checkpoint.metrics, **state}, unfinished)
        for old in self._files()[: -self.keep]:
            old.unlink()

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None without one."""
        files = self._files()
        return _read(files[-1]) if files else None

    def __iter__(self) -> Iterator[Checkpoint]:
        """All checkpoints, the oldest first."""
        return map(_read, self._files())

    @property
    def steps(self) -> list[int]:
        """The steps of all checkpoints, in order."""
        return [int(file.stem.removeprefix("step-")) for file in self._files()]

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))


def _read(file: Path) -> Checkpoint:
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        return Checkpoint(stored["step"], State(stored["tensors"], stored["rest"]), stored["metrics"])
    except (RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(f"checkpoint {file} is damaged; remove it to resume from an earlier one: {error}") from error


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors to a safetensors file."""
    # safetensors restricts the file to its owner; the mode of a new file follows the umask.
    path.touch()
    mode = path.stat().st_mode
    save_file({name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}, path)
    path.chmod(mode)
