"""Training methods: a `Method` maps a network and a batch to named loss terms.

A `NamedMethod` is chosen by name on the command line and has typed options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor, nn

from isda.lab.choices import check_choice
from isda.lab.engine.options import NoMethodOptions, import_class, option_types, parse_options
from isda.lab.engine.settings import Recipe


class Outcome(NamedTuple):
    """What a method makes of a batch."""

    terms: dict[str, Tensor]
    """Scalar loss terms by name; their sum is minimised."""
    outputs: Any
    """What the task measures on training batches, such as the logits of labelled images."""


class Method(nn.Module, ABC):
    """Maps a network and a batch to loss terms; whatever must survive a resume is in its state_dict."""

    divergence_hint: ClassVar[str] = "try a smaller lr"
    """What the error says if the loss is not finite."""

    @abstractmethod
    def forward(self, network: nn.Module, batch: Any) -> Outcome:
        """The loss terms of one training step."""

    def prepare(self, batch: Any) -> Any:
        """The batch as the step sees it, made once per step: as it is, unless a method mixes its samples."""
        return batch

    def measures(self) -> dict[str, float]:
        """Numbers worth recording with each epoch."""
        return {}

    def after_step(self, network: nn.Module) -> None:
        """After each optimiser step."""

    def after_epoch(self) -> None:
        """After each epoch."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network that is evaluated: the trained one by default."""
        return network


_Named = TypeVar("_Named", bound="NamedMethod")


class NamedMethod(Method):
    """A method by its name on the command line.

    A subclass is made with ``(options, network, config)``: an instance of its Options, the network before it is wrapped
    or compiled, and the configuration of the run. CrossEntropy is one.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoMethodOptions
    """A dataclass: what may follow the colon. Every option has a default."""
    settled: ClassVar[dict[str, Any]] = {}
    """Options that the name itself decides."""
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Options that `isda tune` chooses by default, and the values that it tries, in order."""
    families: ClassVar[tuple[str, ...]] = ()
    """The keys of `Recipe.method_defaults` and `Recipe.method_grids` that hold for the method."""

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """What `isda tune` chooses under a recipe: its grid of the first family that has one, else the method's."""
        grids = (recipe.method_grids[family] for family in cls.families if family in recipe.method_grids)
        return dict(next(grids, cls.grid))

    @classmethod
    def resolve(cls, words: str, recipe: Recipe, shortcuts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All options of the method as a user wrote them: ``key=value,key=value``.

        Args:
            words: behind the colon.
            recipe: its method_defaults hold where the words say nothing.
            shortcuts: settings of the run that set an option of the same name, where the words say nothing.
        """
        given = parse_options(cls.name, words, cls.Options)
        for key, value in cls.settled.items():
            if given.get(key, value) != value:
                raise ValueError(f"method {cls.name!r} settles {key}={value}, got {key}={given[key]}")
        known = option_types(cls.Options)
        defaults = [*(recipe.method_defaults.get(family, {}) for family in cls.families), shortcuts or {}]
        options = {key: value for values in defaults for key, value in values.items() if key in known}
        options |= cls.settled | given
        return asdict(cls.Options(**options))

    @classmethod
    def create(cls: type[_Named], network: Any, config: Any) -> _Named:
        """The method of a configuration for a network that is not yet wrapped or compiled."""
        unknown = [name for name in config.method_options if name not in option_types(cls.Options)]
        if unknown:
            raise ValueError(f"method {cls.name} has no option {unknown[0]!r}")
        return cls(cls.Options(**config.method_options), network, config)


def find_method_class(name: str, methods: Mapping[str, type[_Named]], kind: type[_Named]) -> type[_Named]:
    """The method of a name: one of ``methods``, or package.module.Class, which must be a ``kind``."""
    if "." in name:
        method = import_class(name, kind, "method")
        if not hasattr(method, "name"):
            method.name = name
        return method
    return methods[check_choice("method", name, methods)]
