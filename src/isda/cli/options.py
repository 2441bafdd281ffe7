"""Options that several commands share, and how the help text shows them."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

__all__ = ["REGISTRY", "JsonFile"]

JsonFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
"""``--json FILE``; see `isda.cli.output`."""

REGISTRY = ConstructorRegistry()
"""How words become values."""


@REGISTRY.primitive_rule
def _left_out_or_given(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
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
def _with_or_without_a_word(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
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
