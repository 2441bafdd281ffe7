"""A criterion's statistics as a file in somebody else's checkpoint: safetensors, with the run and step they are of."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from isda.files import replacing

__all__ = ["read_origin", "read_statistics", "write_statistics"]


def write_statistics(criterion: nn.Module, path: Path, origin: dict[str, str]) -> None:
    """Write the state_dict of ``criterion``, there as a whole or not at all; ``origin`` says where it comes from."""
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in criterion.state_dict().items()
    }
    with replacing(path) as unfinished:
        # safetensors makes files that only their owner may read; a file made here follows the umask.
        unfinished.touch()
        mode = unfinished.stat().st_mode
        save_file(tensors, unfinished, metadata=origin)
        unfinished.chmod(mode)


def read_origin(path: Path) -> dict[str, str] | None:
    """What `write_statistics` was told of their origin; None where there is no such file."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_statistics(criterion: nn.Module, path: Path) -> None:
    """Put the statistics of a file into ``criterion``.

    Raises:
        ValueError: they are of a criterion with other settings.
    """
    from safetensors.torch import load_file

    tensors, own = load_file(path), criterion.state_dict()
    saved, expected = ({name: tuple(t.shape) for name, t in state.items()} for state in (tensors, own))
    if saved != expected:
        raise ValueError(
            f"{path} must hold the statistics of this criterion, {_shown(expected)}, got {_shown(saved)}; resume with "
            "the covariance, class weights and classes that it was saved with"
        )
    criterion.load_state_dict(tensors)


def _shown(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
