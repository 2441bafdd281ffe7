"""Options that commands share: device, data folder, threads, checkpoints, ``--json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

if TYPE_CHECKING:
    from isda.engine.loop import Saving

JsonFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
"""``--json FILE``; see `isda.cli.output`."""

REGISTRY = ConstructorRegistry()
"""How words become values."""


@REGISTRY.primitive_rule
def _optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """An option of type ``T | None`` is read as T; leaving it out is how a user says None."""
    if get_origin(info.type) not in (Union, UnionType):
        return None
    parts = [part for part in get_args(info.type) if part is not NoneType]
    # A word that may be left out says more than the text that a program may give in its place.
    parts = [part for part in parts if hasattr(part, "bare")] or parts
    if len(parts) != 1 or NoneType not in get_args(info.type):
        return None
    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(parts[0], set()))
    if not isinstance(inner, PrimitiveConstructorSpec):
        return None
    return PrimitiveConstructorSpec(
        nargs=inner.nargs,
        metavar=inner.metavar,
        instance_from_str=inner.instance_from_str,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: ["none"] if value is None else inner.str_from_instance(value),
        choices=inner.choices,
    )


@REGISTRY.primitive_rule
def _optional_word_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """An option whose type says what it stands for alone, as ``bare``, may have one word or none."""
    kind: Any = info.type
    if not hasattr(kind, "bare"):
        return None

    def made(words: list[str]) -> Any:
        if len(words) > 1:
            raise ValueError(f"takes one word at most, got {' '.join(words)}")
        return kind(words[0] if words else kind.bare)

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=kind.metavar,
        instance_from_str=made,
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [str(value)],
    )


MAX_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options that the training commands share."""

    data_root: Path | None = None
    """The folder of data sets; by default the environment's ISDA_DATA, else ./data."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    workers: int | None = None
    """Threads that decode and augment images ahead, where they are files; 4 if left out."""
    threads: int | None = None
    """CPU threads; torch's choice by default."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint when this much time has passed since the last."""
    checkpoint_steps: int | None = None
    """Write a checkpoint every so many steps as well."""
    keep: int = 2
    """How many checkpoints to keep."""

    def saving(self) -> Saving:
        """When to write checkpoints."""
        from isda.engine.loop import Saving

        return Saving(self.checkpoint_minutes, self.checkpoint_steps, self.keep)

    def use_threads(self) -> None:
        """Set torch's threads, if the user has a wish."""
        import torch

        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_THREADS:
                raise ValueError(f"{name} must be from 1 to {MAX_THREADS}, got {value}")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
