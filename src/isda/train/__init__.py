"""Training: recipes, the loop, run folders, and many processes.

>>> from isda.train import Settings, load_data, resolve
>>> settings = Settings(data="digits", network="fast-cnn", method="isda", scale="smoke")
>>> config = resolve(settings, load_data(settings))
>>> config.epochs, config.method_options["lambda_0"]
(1, 0.5)

``train(config, data, folder)`` then trains and returns the result.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.train.comparing import compare
    from isda.train.config import Config
    from isda.train.hooks import Hook
    from isda.train.interruptions import NonFiniteLoss, Stopped
    from isda.train.loop import Saving, train
    from isda.train.methods import METHODS, Method
    from isda.train.processes import Processes, join_processes
    from isda.train.recipes import SCALES, Recipe, recipe_for
    from isda.train.resolving import load_data, resolve
    from isda.train.settings import Settings
    from isda.train.trained import load_trained

_HOMES = {
    "METHODS": "methods",
    "SCALES": "recipes",
    "Config": "config",
    "Hook": "hooks",
    "Method": "methods",
    "NonFiniteLoss": "interruptions",
    "Processes": "processes",
    "Recipe": "recipes",
    "Saving": "loop",
    "Settings": "settings",
    "Stopped": "interruptions",
    "compare": "comparing",
    "join_processes": "processes",
    "load_data": "resolving",
    "load_trained": "trained",
    "recipe_for": "recipes",
    "resolve": "resolving",
    "train": "loop",
}

__all__ = [
    "METHODS",
    "SCALES",
    "Config",
    "Hook",
    "Method",
    "NonFiniteLoss",
    "Processes",
    "Recipe",
    "Saving",
    "Settings",
    "Stopped",
    "compare",
    "join_processes",
    "load_data",
    "load_trained",
    "recipe_for",
    "resolve",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for: `isda --help` must not wait for torchvision."""
    if name in _HOMES:
        return getattr(import_module(f"isda.train.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'isda.train' has no attribute {name!r}")
