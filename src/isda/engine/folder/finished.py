"""A run that has come to its end, and its weights: what every command starts from that uses a trained network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from isda.engine.folder.formats import read_config
from isda.engine.folder.run_folder import RunFolder
from isda.networks.fitting import check_values

__all__ = ["check_task", "finished_run", "load_weights", "made_as_described"]


def finished_run(folder: Path) -> tuple[RunFolder, dict[str, Any]]:
    """The run in a folder, and the content of its config.json.

    Raises:
        ValueError: no run, or one that is not finished.
    """
    run = RunFolder(folder)
    if not run.started:
        raise ValueError(f"no run in {folder}: a run folder holds {run.config_file.name}")
    if not run.finished:
        raise ValueError(f"the run in {folder} is not finished; go on with the command that made it and --resume")
    return run, read_config(run.config_file)


def check_task(run: RunFolder, stored: Mapping[str, Any], task: str, what: str) -> None:
    """Raise ValueError unless a run is of the task whose runs make ``what``."""
    if stored.get("task") != task:
        raise ValueError(f"{run.config_file} must be of {what}, got the task {stored.get('task')!r}")


@contextmanager
def made_as_described(run: RunFolder, what: str = "network") -> Iterator[None]:
    """Makes in the block what the configuration of a run describes, or a ValueError says that it cannot be made."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise ValueError(f"{run.config_file} does not describe a {what} that can be made: {error}") from error


def load_weights(run: RunFolder, network: nn.Module, name: str) -> None:
    """Give a network the final weights of a run.

    Raises:
        ValueError: they are damaged, or of another network than the one called ``name``.
    """
    result = run.read_result()
    try:
        run.check_weights(result)
        weights = load_file(run.weights_file)
        check_values(weights, network.state_dict(), "it")
        network.load_state_dict(weights)
    except (SafetensorError, RuntimeError, OSError, ValueError) as error:
        # torch lists all that does not fit on lines of its own.
        reason = " ".join(str(error).split())
        raise ValueError(f"{run.weights_file} does not hold the weights of {name}: {reason}") from error
