"""The players of a configuration, and what a run would fail at, found before its folder is made."""

from __future__ import annotations

from isda.classification.foreseeing import FAILURES, check_memory, first_line, made, said
from isda.generative.config import Config
from isda.generative.methods import GenerativeMethod, Players

__all__ = ["create_players", "foresee"]


def create_players(config: Config, method: type[GenerativeMethod]) -> Players:
    """Generator and discriminator, with random weights."""
    return Players(method.make_generator(config), method.make_discriminator(config))


def foresee(config: Config, method: type[GenerativeMethod]) -> None:
    """Raise a ValueError if the players or the method cannot be made, or do not fit in memory.

    Nothing is computed: all are made without memory.
    """
    told = f"network {config.network} with {said(config.network_options)}"
    players: Players = made(lambda: create_players(config, method), told)
    check_memory(told, players, config.dtype)
    try:
        method.create(players, config)
    except FAILURES as error:
        options = said(config.method_options)
        raise ValueError(f"method {config.method} with {options} cannot be made: {first_line(error)}") from error
