"""Code of the user's own, by the name that a user writes: ``package.module.Class`` or ``package.module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from isda.errors import describe

__all__ = ["current_folder_on_path", "load_named"]

_Kind = TypeVar("_Kind")


def load_named(name: str, kind: type[_Kind], what: str) -> type[_Kind]:
    """The class of a name, which must be a ``kind``.

    Modules are found where Python finds them, and in the current folder. Only names that a user has written may come
    here: a name from a file of somebody else would run their code.

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
        raise ValueError(f"{what} {name!r} could not be loaded: {describe(error)}") from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        room = ".".join(kind.__module__.split(".")[:2])
        raise ValueError(f"{what} {name!r} must be a subclass of {room}.{kind.__name__}, got {_short(found)}")
    return found


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
