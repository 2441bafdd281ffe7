"""Atomic checkpoints: verified by digest before loading, never unpickled.

A checkpoint is a folder ``step-000001234`` with a safetensors file and a JSON file.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from isda._utils.files import flush_to_disk
from isda.lab.engine.digests import file_digest, json_text, verified, with_digest

_MANIFEST, _REST = "manifest.json", "rest.pt"
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError)


class State(NamedTuple):
    """The state of a job in a checkpoint."""

    tensors: dict[str, dict[str, Tensor]]
    """Groups of named tensors, such as the state_dict of the network: one safetensors file each."""
    rest: dict[str, Any]
    """Nested dicts and lists of numbers, strings and tensors."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is needed to resume a run after a step."""

    step: int
    state: State
    metrics: list[dict[str, Any]]
    """The metrics of the epochs so far."""
    run: str
    """The identity of the run, see RunConfig.identity."""


class Checkpoints:
    """The checkpoints of a run, of which the last few are kept.

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
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"step-{checkpoint.step:09d}"
        if final.exists():
            return
        unfinished = self.folder / f".unfinished-{final.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir()
            _write_files(unfinished, checkpoint)
            os.rename(unfinished, final)
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(
                f"the checkpoint of step {checkpoint.step} could not be written to {final}: {error}"
            ) from error
        flush_to_disk(self.folder)
        for old in self._complete()[: -self.keep]:
            _remove(old)

    def load_latest(self, run: str) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, and a warning about each newer one that is damaged.

        Args:
            run: the identity of the run to resume.

        Raises:
            ValueError: the checkpoint is of another run.
        """
        warnings: list[str] = []
        for folder in reversed(self._complete()):
            try:
                checkpoint = _read_files(folder)
            except _UNREADABLE as error:
                warnings.append(f"checkpoint {folder} is damaged and was skipped: {error}")
                continue
            if checkpoint.run != run:
                raise ValueError(f"checkpoint {folder} is of another run; choose another folder for this one")
            return checkpoint, warnings
        return None, warnings

    def intact(self, run: str) -> Iterator[Checkpoint]:
        """The readable checkpoints of a run, the oldest first."""
        for folder in self._complete():
            try:
                checkpoint = _read_files(folder)
            except _UNREADABLE:
                continue
            if checkpoint.run == run:
                yield checkpoint

    @property
    def steps(self) -> list[int]:
        """The steps of all checkpoints, in order."""
        return [_step_of(folder) for folder in self._complete()]

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, or None without one."""
        return max(self.steps, default=None)

    def tidy(self) -> None:
        """Remove the remains of interrupted writes and removals."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} must be a folder, it is a file")
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def discard_after(self, step: int) -> None:
        """Remove (damaged) checkpoints that are newer than the one a run is resumed from."""
        for folder in self._complete():
            if _step_of(folder) > step:
                _remove(folder)

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.name.removeprefix("step-").isdigit())


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _remove(folder: Path) -> None:
    """Rename first: an interrupted removal must not look like a checkpoint."""
    hidden = folder.with_name(f".removed-{folder.name}")
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors to a safetensors file."""
    # safetensors restricts the file to its owner; the mode of a new file follows the umask.
    path.touch()
    mode = path.stat().st_mode
    save_file({name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}, path)
    path.chmod(mode)


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    for group, tensors in checkpoint.state.tensors.items():
        write_tensors(tensors, folder / f"{group}.safetensors")
    torch.save(checkpoint.state.rest, folder / _REST)
    files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
    manifest = {
        "step": checkpoint.step,
        "run": checkpoint.run,
        "groups": list(checkpoint.state.tensors),
        "metrics": checkpoint.metrics,
        "files": files,
    }
    (folder / _MANIFEST).write_text(json_text(with_digest(manifest), indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        flush_to_disk(path)
    flush_to_disk(folder)


def _read_files(folder: Path) -> Checkpoint:
    manifest_file = folder / _MANIFEST
    if not manifest_file.is_file():
        raise ValueError(f"{_MANIFEST} is missing")
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{_MANIFEST} is not valid JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("step") != _step_of(folder):
        raise ValueError(f"{_MANIFEST} is of another checkpoint")
    if "sha256" not in manifest:
        raise ValueError(f"{_MANIFEST} has no digest")
    manifest = verified(manifest, _MANIFEST)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != expected["bytes"]:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}")
        if file_digest(path) != expected:
            raise ValueError(f"{name} was changed after it was written")
    tensors = {group: load_file(folder / f"{group}.safetensors") for group in manifest["groups"]}
    rest = torch.load(folder / _REST, weights_only=True, map_location="cpu")
    return Checkpoint(manifest["step"], State(tensors, rest), manifest["metrics"], manifest["run"])
