"""How methods are written: ``name`` or ``name:key=value,key=value``, with the options that a dataclass declares.

Every method states its options as typed fields of a dataclass; nothing else knows how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from isda.choices import check_choice

__all__ = [
    "NoOptions",
    "canonical",
    "option_types",
    "own_names",
    "plain_type",
    "read_options",
    "read_value",
    "split_method",
]


@dataclass(frozen=True)
class NoOptions:
    """The options of methods that have none."""


_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a word"}


def split_method(text: str) -> tuple[str, str]:
    """The name of a method and its options, as they are written.

    Example:
        >>> split_method("isda:lambda_0=2,decay=0.99")
        ('isda', 'lambda_0=2,decay=0.99')
    """
    name, _, words = text.partition(":")
    return name, words


def own_names(method: str) -> list[str]:
    """Code of the user's own that a method, as it is written, has imported: its class, that of its covariance.

    Example:
        >>> own_names("isda:lambda_0=0.5,covariance=mine.Model"), own_names("mine.Method")
        (['mine.Model'], ['mine.Method'])
    """
    name, words = split_method(method)
    covariances = [word.removeprefix("covariance=") for word in words.split(",") if word.startswith("covariance=")]
    return [one for one in (name, *covariances) if "." in one]


def option_types(declared: type) -> dict[str, type]:
    """The options of a method and the type of each, from its dataclass; ``float | None`` is read as float."""
    if not is_dataclass(declared):
        raise TypeError(f"the options of a method must be a dataclass, got {declared!r}")
    hints = get_type_hints(declared)
    return {f.name: _option_type(hints[f.name]) for f in fields(declared)}


def _option_type(hint: Any) -> type:
    found = plain_type(hint)
    if found is None:
        raise TypeError(f"an option of a method must be an int, float, bool or str, got {hint!r}")
    return found


def plain_type(hint: Any) -> type | None:
    """The type of values that one word can say, None for others; of ``float | None`` it is float.

    Example:
        >>> plain_type(float | None), plain_type(dict[str, str])
        (<class 'float'>, None)
    """
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        hint = parts[0] if len(parts) == 1 else hint
    if get_origin(hint) is Literal:
        hint = str
    return hint if hint in _KINDS else None


def read_options(name: str, words: str, *declared: type) -> dict[str, Any]:
    """The options in ``key=value,key=value`` that a method's dataclasses declare, each once.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Options:
        ...     gamma: float = 2.0
        >>> read_options("focal", "gamma=1", Options)
        {'gamma': 1.0}
    """
    known, given = dict[str, type](), dict[str, Any]()
    for one in declared:
        known |= option_types(one)
    for word in filter(None, words.split(",")):
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"method options are written key=value, got {word!r} in {name}:{words}")
        if not known:
            raise ValueError(f"method {name} has no options, got {key!r}")
        check_choice(f"option of method {name}", key, known)
        if key in given:
            raise ValueError(f"option {key} of method {name} must be given once, got it twice in {name}:{words}")
        given[key] = read_value(f"option {key} of method {name}", text, known[key])
    return given


def read_value(what: str, text: str, kind: type) -> Any:
    """The value that a word says; a ValueError names ``what`` it is of.

    Example:
        >>> read_value("lr", "1e-1", float)
        0.1
    """
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{what} must be {_KINDS[kind]}, got {text!r}") from error


def canonical(text: str) -> str:
    """A method as a user wrote it, with its numbers in one way of writing.

    Example:
        >>> canonical("isda:lambda_0=1.0,covariance=diagonal,decay=9e-1")
        'isda:lambda_0=1,covariance=diagonal,decay=0.9'
    """
    name, words = split_method(text)
    pairs = (word.partition("=") for word in filter(None, words.split(",")))
    return ":".join(filter(None, [name, ",".join(f"{key}{sign}{_number(value)}" for key, sign, value in pairs)]))


def _number(text: str) -> str:
    try:
        return str(float(text)).removesuffix(".0")
    except ValueError:
        return text
