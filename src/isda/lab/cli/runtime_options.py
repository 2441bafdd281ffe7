"""Options that commands share: device, data folder, threads, checkpoints, ``--json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from isda._utils.choices import check_range
from isda.lab.engine.settings import Saving, setting

JSON_HELP = 'also write the result to this file as JSON; "-" writes JSON to the standard output and nothing else.'
JsonFile = Annotated[str | None, tyro.conf.arg(metavar="FILE", help=JSON_HELP)]
"""``--json FILE``; see `isda.lab.cli.output.show`."""
DataRoot = Annotated[
    Path | None,
    tyro.conf.arg(help="the folder of data sets; by default the environment variable ISDA_DATA, else ./data."),
]
Device = Annotated[str, tyro.conf.arg(help="auto, cpu, cuda or cuda:1.")]

REGISTRY = ConstructorRegistry()
"""How tyro parses values."""


@REGISTRY.primitive_rule
def _optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse an option of type ``T | None`` as T; None is the value of an option that is not given."""
    if get_origin(info.type) not in (Union, UnionType):
        return None
    parts = [part for part in get_args(info.type) if part is not NoneType]
    # A type with an optional value takes precedence over plain text, which only Python code passes.
    parts = [part for part in parts if hasattr(part, "bare")] or parts
    if NoneType not in get_args(info.type):
        return None
    either: Any = Union[tuple(parts)]  # noqa: UP007
    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(either, set()))
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
    """Parse an option whose type has an attribute ``bare``, the value of the option when no word follows it."""
    kind: Any = info.type
    if not hasattr(kind, "bare"):
        return None

    def parse(words: list[str]) -> Any:
        if len(words) > 1:
            raise ValueError(f"takes one word at most, got {' '.join(words)}")
        return kind(words[0] if words else kind.bare)

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=kind.metavar,
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [str(value)],
    )


MAX_THREADS = 1024
MACHINE = "Data folder and machine"
"""A section of help texts."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of commands that load data."""

    data_root: DataRoot = setting(None, section=MACHINE)
    device: Device = setting("auto", section=MACHINE)


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(DataOptions):
    """Options of commands that measure a trained network."""

    json: JsonFile = None


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(DataOptions):
    """Options of commands that train."""

    workers: int | None = setting(None, section=MACHINE, default_text="4", rare=True)
    """Threads that decode and augment images ahead, where they are files."""
    threads: int | None = setting(None, section=MACHINE, default_text="torch's choice")
    """CPU threads."""
    checkpoint_minutes: float = setting(5.0, section=MACHINE, metavar="MINUTES", rare=True)
    """Write a checkpoint when this much time has passed since the last."""
    checkpoint_steps: int | None = setting(None, section=MACHINE, metavar="STEPS", rare=True)
    """Write a checkpoint every so many steps as well."""
    keep: int = setting(2, section=MACHINE, rare=True)
    """How many checkpoints to keep."""

    def saving(self) -> Saving:
        """When to write checkpoints."""
        return Saving(self.checkpoint_minutes, self.checkpoint_steps, self.keep)

    def set_threads(self) -> None:
        """Set the number of torch's threads if it is given."""
        import torch

        for name in ("workers", "threads"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 1, MAX_THREADS)
        if self.threads is not None:
            torch.set_num_threads(self.threads)


def check_image_files(images: Sequence[Path], distinct_names: bool = False) -> None:
    """Raise an error unless there are images, whose file names differ where output files are named by them."""
    if not images:
        raise ValueError("images must name at least one image file, got none")
    name, count = Counter(path.stem for path in images).most_common(1)[0]
    if distinct_names and count > 1:
        raise ValueError(f"images must have different file names, got {name!r} {count} times")
    for path in images:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
