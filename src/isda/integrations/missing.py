"""The sentence for somebody who has not installed the library that an integration is for."""

from importlib import import_module
from types import ModuleType

from isda.extras import install

__all__ = ["needs"]


def needs(library: str, extra: str) -> ModuleType:
    """Import ``library``, or say what to install.

    Args:
        library: the name by which it is imported.
        extra: the extra of isda-torch that brings it.

    Raises:
        ImportError: it is not installed.

    Example:
        >>> needs("a_library_nobody_has", "its-extra")
        Traceback (most recent call last):
        ...
        ImportError: a_library_nobody_has is not installed; pip install 'isda-torch[its-extra]'
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name != library.partition(".")[0]:
            raise  # it is there, but something that it uses itself is not: its own words say what
        raise ImportError(f"{library} is not installed; {install(extra)}", name=library) from None
