"""Method strings ``name:key=value,key=value`` and import of user code by its dotted name.

Methods declare their options as dataclasses. This module does not import torch: ``isda --help`` uses it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from isda.lab.choices import check_choice

_Kind = TypeVar("_Kind")


def import_class(name: str, kind: type[_Kind], what: str) -> type[_Kind]:
    """The class of a name, which must be a ``kind``.

    Modules are found where Python finds them, and in the current folder. Only names that a user has written may come
    here: a name from an untrusted file would run its author's code.

    Args:
        name: as a user writes it.
        kind: what it must be a subclass of.
        what: it is, for messages: "task", "hook", "method".
    """
    module_name, _, attribute = name.replace(":", ".").rpartition(".")
    if not module_name:
        raise ValueError(f"{what} must be written package.module:Class, got {name!r}")
    try:
        with current_folder_on_path():
            found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {name!r} could not be loaded: {error}") from error
    except Exception as error:  # whatever a module does when it is imported
        raise ValueError(f"{what} {name!r} could not be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{what} {name!r} must be a subclass of {_public_name(kind)}, got {_short(found)}")
    return found


def _public_name(kind: type) -> str:
    """The shortest import path under which a class of this package can be imported."""
    parts = kind.__module__.split(".")
    for end in range(1, len(parts) + 1):
        package = ".".join(parts[:end])
        if getattr(sys.modules.get(package), kind.__name__, None) is kind:
            return f"{package}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__name__}"


@contextmanager
def current_folder_on_path() -> Iterator[None]:
    """Find modules in the current folder too while the block runs."""
    folder = ""  # Python's name for the current folder, for one that was removed
    with suppress(OSError):
        folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _short(found: Any) -> str:
    return found.__name__ if isinstance(found, type) else type(found).__name__


@dataclass(frozen=True)
class NoMethodOptions:
    """The options of methods that have none."""


_KINDS: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a word",
}


def split_method(text: str) -> tuple[str, str]:
    """The name of a method and its options, as they are written.

    Example:
        >>> split_method("isda:lambda_0=2,memory=30")
        ('isda', 'lambda_0=2,memory=30')
    """
    name, _, words = text.partition(":")
    return name, words


def given_options(text: str) -> set[str]:
    """The names of the options that a method string gives.

    Example:
        >>> sorted(given_options("isda:lambda_0=2,memory=30")), given_options("isda")
        (['lambda_0', 'memory'], set())
    """
    return {word.partition("=")[0] for word in filter(None, split_method(text)[1].split(","))}


def user_code_names(method: str, class_options: Sequence[str] = ()) -> list[str]:
    """The names of user-defined classes in a method string: dotted names.

    Args:
        method: ``name`` or ``name:key=value,key=value``.
        class_options: options whose value may name a class.

    Example:
        >>> user_code_names("isda:lambda_0=0.5,covariance=mine.Model", ["covariance"]), user_code_names("mine.Method")
        (['mine.Model'], ['mine.Method'])
    """
    name, words = split_method(method)
    options = [word.partition("=") for word in words.split(",")]
    return [text for text in (name, *(value for key, _, value in options if key in class_options)) if "." in text]


def option_types(declared: type) -> dict[str, type]:
    """The options of a method and the type of each, from its dataclass; ``float | None`` is read as float."""
    if not is_dataclass(declared):
        raise TypeError(f"the options of a method must be a dataclass, got {declared!r}")
    hints = get_type_hints(declared)
    return {f.name: _option_type(hints[f.name]) for f in fields(declared)}


def _option_type(hint: Any) -> type:
    found = scalar_type(hint)
    if found is None:
        raise TypeError(f"an option of a method must be an int, float, bool or str, got {hint!r}")
    return found


def scalar_type(hint: Any) -> type | None:
    """The type of values that one word can say, None for others; of ``float | None`` it is float.

    Of a number that may also be one of some words it is the number.

    Example:
        >>> scalar_type(float | None), scalar_type(int | Literal["all"]), scalar_type(dict[str, str])
        (<class 'float'>, <class 'int'>, None)
    """
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        parts = [part for part in parts if get_origin(part) is not Literal] or parts
        hint = parts[0] if len(parts) == 1 else hint
    if get_origin(hint) is Literal:
        hint = str
    return hint if hint in _KINDS else None


def parse_options(name: str, words: str, *declared: type) -> dict[str, Any]:
    """The options in ``key=value,key=value`` that a method's dataclasses declare, each once.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Options:
        ...     gamma: float = 2.0
        >>> parse_options("focal", "gamma=1", Options)
        {'gamma': 1.0}
    """
    known, given = dict[str, type](), dict[str, Any]()
    for options in declared:
        known |= option_types(options)
    for word in filter(None, words.split(",")):
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"method options are written key=value, got {word!r} in {name}:{words}")
        if not known:
            raise ValueError(f"method {name} has no options, got {key!r}")
        check_choice(f"option of method {name}", key, known)
        if key in given:
            raise ValueError(f"option {key} of method {name} must be given once, got it twice in {name}:{words}")
        given[key] = parse_value(f"option {key} of method {name}", text, known[key])
    return given


def parse_value(what: str, text: str, kind: type) -> Any:
    """The value that a word says; a ValueError names ``what`` it is of.

    Example:
        >>> parse_value("lr", "1e-1", float)
        0.1
    """
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{what} must be {_KINDS[kind]}, got {text!r}") from error


def options_from_text(texts: Mapping[str, str]) -> dict[str, Any]:
    """Options from text: numbers, truth values and null as in JSON, other texts as they are.

    Example:
        >>> options_from_text({"width": "0.5", "stem": "deep"})
        {'width': 0.5, 'stem': 'deep'}
    """
    options: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            options[name] = json.loads(text)
        except (TypeError, ValueError):
            options[name] = text
    return options


def canonical_method(text: str) -> str:
    """A method as a user wrote it, with its numbers in one way of writing.

    Example:
        >>> canonical_method("isda:lambda_0=1.0,covariance=diagonal,memory=30")
        'isda:lambda_0=1,covariance=diagonal,memory=30'
    """
    name, words = split_method(text)
    pairs = (word.partition("=") for word in filter(None, words.split(",")))
    return ":".join(filter(None, [name, ",".join(f"{key}{sign}{_number(value)}" for key, sign, value in pairs)]))


def _number(text: str) -> str:
    try:
        return str(float(text)).removesuffix(".0")
    except ValueError:
        return text
