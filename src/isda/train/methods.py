"""What a training step minimises: named loss terms of a network and a batch, by the name a user gives the method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from isda.choices import check_choice
from isda.losses import ISDALoss
from isda.networks import Network
from isda.train.batches import Batch
from isda.train.recipes import Recipe

__all__ = [
    "METHODS",
    "Method",
    "Outcome",
    "Supervised",
    "create_method",
    "parse_options",
    "resolve_method",
    "split_method",
]

METHODS: dict[str, dict[str, Any]] = {
    "cross-entropy": {},
    "isda": {"bound": "jensen"},
    "isda-tilted": {"bound": "tilted"},
}
"""The supervised methods, each with what its name settles."""

_ISDA_OPTIONS: dict[str, Callable[[str], Any]] = {
    "lambda_0": float,
    "covariance": str,
    "bound": str,
    "decay": float,
    "rank": int,
    "label_smoothing": float,
    "schedule": str,
}
_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "cross-entropy": {"label_smoothing": float},
    "isda": _ISDA_OPTIONS,
    "isda-tilted": _ISDA_OPTIONS,
}


class Outcome(NamedTuple):
    """What a method makes of a batch."""

    terms: dict[str, Tensor]
    """Scalar loss terms by name; their sum is minimised."""
    logits: Tensor
    """(N, C) of the batch's labelled images, for the training error."""


class Method(nn.Module, ABC):
    """Maps a network and a batch to loss terms; whatever must survive a resume is in its state_dict."""

    @abstractmethod
    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """The loss terms of one training step."""

    def measures(self) -> dict[str, float]:
        """Numbers worth recording with each epoch, such as ISDA's current strength."""
        return {}

    def after_step(self, network: nn.Module) -> None:
        """After each optimiser step."""

    def after_epoch(self) -> None:
        """After each epoch."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network that is judged: the trained one, unless a method says otherwise."""
        return network


class Supervised(Method):
    """Labelled images and one criterion of logits and targets."""

    def __init__(self, name: str, criterion: nn.Module) -> None:
        super().__init__()
        self.name, self.criterion = name, criterion

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({self.name: self.criterion(logits, batch.targets)}, logits)

    def measures(self) -> dict[str, float]:
        """The strength lambda of the criterion, if it is ISDA's."""
        return {"strength": self.criterion.strength} if isinstance(self.criterion, ISDALoss) else {}


def resolve_method(text: str, recipe: Recipe, lambda_0: float | None = None) -> tuple[str, dict[str, Any]]:
    """The name and all options of a method written as ``name`` or ``name:key=value,key=value``.

    Args:
        text: as a user writes it.
        recipe: gives lambda_0 and the covariance where nobody else does.
        lambda_0: ISDA's strength where the text does not say.

    Example:
        >>> from isda.train.recipes import recipe_for
        >>> resolve_method("isda-tilted:lambda_0=2", recipe_for("resnet-20"))
        ('isda-tilted', {'lambda_0': 2.0, 'covariance': 'full', 'bound': 'tilted'})
    """
    name, words = split_method(text)
    check_choice("method", name, tuple(METHODS))
    given = parse_options(name, words, _OPTIONS[name])
    for key, value in METHODS[name].items():
        if given.get(key, value) != value:
            raise ValueError(f"method {name!r} settles {key}={value}, got {key}={given[key]}")
    if name == "cross-entropy":
        return name, given
    strength = recipe.lambda_0 if lambda_0 is None else lambda_0
    return name, {"lambda_0": strength, "covariance": recipe.covariance} | METHODS[name] | given


def split_method(text: str) -> tuple[str, str]:
    """The name of a method and its options, as they are written."""
    name, _, words = text.partition(":")
    return name, words


def parse_options(name: str, words: str, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The options of a method from ``key=value,key=value``.

    Args:
        name: of the method.
        words: as a user writes them.
        known: what each option is read with.
    """
    options: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"method options are written key=value, got {word!r} in {name}:{words}")
        check_choice(f"option of method {name}", key, tuple(known))
        try:
            options[key] = known[key](value)
        except (ValueError, KeyError) as error:
            kind = {int: "an integer", float: "a number"}.get(known[key], "true or false")  # type: ignore[call-overload]
            raise ValueError(f"option {key} of method {name} must be {kind}, got {value!r}") from error
    return options


def create_method(name: str, options: dict[str, Any], network: Network, total_steps: int) -> Method:
    """The method for a network, attached to its classifier.

    Args:
        name: one of METHODS.
        options: as `resolve_method` returns them.
        network: the network itself, not yet wrapped or compiled.
        total_steps: of the run, over which ISDA's strength grows (schedule=constant keeps it at lambda_0).
    """
    if not 0 <= options.get("label_smoothing", 0) <= 1:
        raise ValueError(f"label_smoothing must lie in 0..1, got {options['label_smoothing']}")
    if name == "cross-entropy":
        return Supervised("cross-entropy", nn.CrossEntropyLoss(**options))
    settings = dict(options)
    if "rank" in settings and settings["covariance"] != "low_rank":
        raise ValueError(f"rank is for covariance=low_rank, got covariance={settings['covariance']}")
    schedule = check_choice("schedule", settings.pop("schedule", "linear"), ("linear", "constant"))
    steps = total_steps if schedule == "linear" else None
    try:
        criterion = ISDALoss.attach(network, total_steps=steps, classifier=network.classifier, **settings)
    except TypeError as error:
        raise ValueError(f"the options {settings} of method {name} do not go together: {error}") from error
    return Supervised("isda", criterion)
