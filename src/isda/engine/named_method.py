"""Methods that a user chooses by name, with options after a colon; a task has a base class of its own for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from isda.choices import check_choice
from isda.engine.grammar import NoOptions, option_types, read_options
from isda.engine.method import Method
from isda.engine.naming import load_named
from isda.engine.recipe import Recipe

__all__ = ["NamedMethod", "find_named"]

_Named = TypeVar("_Named", bound="NamedMethod")


class NamedMethod(Method):
    """A method by its name on the command line.

    A subclass is made with ``(options, network, config)``: an instance of its Options, the network before it is wrapped
    or compiled, and the configuration of the run. docs/extend.md shows one.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    """A dataclass: what may follow the colon. Every option has a default."""
    settled: ClassVar[dict[str, Any]] = {}
    """Options that the name itself decides."""
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Options that `isda tune` chooses unless told, and the values that it tries, in order."""

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """What the recipe, or ``--lambda-0``, says of the options where the user's text does not."""
        return {}

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """The grid where a recipe decides it."""
        return cls.grid

    @classmethod
    def resolve(cls, words: str, recipe: Recipe, lambda_0: float | None = None) -> dict[str, Any]:
        """All options of the method as a user wrote them: ``key=value,key=value``."""
        given = read_options(cls.name, words, cls.Options)
        for key, value in cls.settled.items():
            if given.get(key, value) != value:
                raise ValueError(f"method {cls.name!r} settles {key}={value}, got {key}={given[key]}")
        return cls.defaults(recipe, lambda_0) | cls.settled | given

    @classmethod
    def create(cls: type[_Named], network: Any, config: Any) -> _Named:
        """The method of a configuration for a network that is not yet wrapped or compiled."""
        unknown = [name for name in config.method_options if name not in option_types(cls.Options)]
        if unknown:
            raise ValueError(f"method {cls.name} has no option {unknown[0]!r}")
        return cls(cls.Options(**config.method_options), network, config)


def find_named(name: str, methods: Mapping[str, type[_Named]], kind: type[_Named]) -> type[_Named]:
    """The method of a name: one of ``methods``, or package.module.Class, which must be a ``kind``."""
    if "." in name:
        method = load_named(name, kind, "method")
        if not hasattr(method, "name"):
            method.name = name
        return method
    return methods[check_choice("method", name, methods)]
