"""What a supervised method is: options that a user can write, and a loss of a network and labelled images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from isda.engine.grammar import NoOptions, option_types, read_options
from isda.engine.method import Method
from isda.engine.recipe import Recipe
from isda.networks import Network

if TYPE_CHECKING:
    from isda.classification.config import Config

__all__ = ["ClassificationMethod"]


class ClassificationMethod(Method):
    """A method of `isda train`, by its name on the command line.

    A subclass is made with ``(options, network, config)``: an instance of its Options, the network before it is wrapped
    or compiled, and the configuration of the run. docs/extend.md shows one.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    """A dataclass: what may follow the colon. Every option has a default."""
    settled: ClassVar[dict[str, Any]] = {}
    """Options that the name itself decides."""

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """What the recipe, or ``--lambda-0``, says of the options where the user's text does not."""
        return {}

    @classmethod
    def resolve(cls, words: str, recipe: Recipe, lambda_0: float | None = None) -> dict[str, Any]:
        """All options of the method as a user wrote them: ``key=value,key=value``."""
        given = read_options(cls.name, words, cls.Options)
        for key, value in cls.settled.items():
            if given.get(key, value) != value:
                raise ValueError(f"method {cls.name!r} settles {key}={value}, got {key}={given[key]}")
        return cls.defaults(recipe, lambda_0) | cls.settled | given

    @classmethod
    def create(cls, network: Network, config: Config) -> ClassificationMethod:
        """The method of a configuration for a network that is not yet wrapped or compiled."""
        unknown = [name for name in config.method_options if name not in option_types(cls.Options)]
        if unknown:
            raise ValueError(f"method {cls.name} has no option {unknown[0]!r}")
        return cls(cls.Options(**config.method_options), network, config)
