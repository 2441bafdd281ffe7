"""Weights from files that anybody may have written: named tensors, and nothing that could be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["read_weights"]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file of safetensors or of torch.save; nothing in it is run.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"the weights {path} are not a file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    except Exception as error:
        # Any other file is read as pickled instructions, which fail in any way; torch then advises to run them.
        raise ValueError(
            f"{path} cannot be read as weights: it must be a file of safetensors, or one that torch.save wrote and that "
            "holds tensors only"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise ValueError(f"{path} must hold named tensors, got {type(content).__name__}")
    return content
