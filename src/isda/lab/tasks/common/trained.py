"""Open finished runs: their configuration, their network with its final weights, and the order of their classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import check_task, config_errors, load_weights, open_finished_run

_Config = TypeVar("_Config", bound=TrainingConfig)
_Network = TypeVar("_Network", bound=nn.Module)


def open_run(
    folder: Path, task: str, text: str, config_type: type[_Config], make_network: Callable[[_Config], _Network]
) -> tuple[_Config, _Network]:
    """The configuration of a finished run, and its network in eval mode.

    Args:
        folder: of the run.
        task: the task that the run must be of.
        text: what its runs make, for messages: "a detector".
        config_type: the configuration of the task.
        make_network: the network of a configuration.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    run, stored = open_finished_run(folder)
    check_task(run, stored, task, text)
    config = config_type.from_stored(stored, run.config_file)
    return config, restore_network(run, config, make_network)


def restore_network(run: RunFolder, config: _Config, make_network: Callable[[_Config], _Network]) -> _Network:
    """The network of a finished run with its final weights, in eval mode."""
    with config_errors(run):
        network = make_network(config).to(config.dtype)
    load_weights(run, network, config.network)
    return network.eval()


def label_map(name: str, data_classes: Sequence[str], classes: Sequence[str]) -> Tensor:
    """(C,) the label that a run has for each class of a data set, by the names of the classes.

    Args:
        name: of the data set, for messages.
        data_classes: of the data set.
        classes: of the run.

    Raises:
        ValueError: the classes differ, or names occur twice and the order differs.

    Example:
        >>> label_map("pets", ["dog", "cat"], ["cat", "dog"])
        tensor([1, 0])
    """
    missing = [label for label in classes if label not in data_classes]
    further = [label for label in data_classes if label not in classes]
    if missing or further:
        differences = [f"{verb} {_first_few(names)}" for verb, names in (("lacks", missing), ("has", further)) if names]
        raise ValueError(f"data must have the {len(classes)} classes of the run; {name} {' and '.join(differences)}")
    if list(data_classes) == list(classes):
        return torch.arange(len(classes))
    if len(set(classes)) < len(classes) or len(data_classes) != len(classes):
        raise ValueError(f"data must have the classes of the run in their order if names occur twice: {name}")
    return torch.tensor([list(classes).index(label) for label in data_classes])


def _first_few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
