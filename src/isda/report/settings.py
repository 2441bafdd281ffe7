"""What runs share and in what they differ, of their configurations and environments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["differing", "flatten", "shared", "value_text", "values_text"]

MANY = 8
"""Longer lists, such as the class names, are shortened."""


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with dotted names.

    Example:
        >>> flatten({"seed": 1, "method_options": {"lambda_0": 0.5}})
        {'seed': 1, 'method_options.lambda_0': 0.5}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": below for inner, below in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all have and that are the same in all."""
    return {
        key: value
        for key, value in settings[0].items()
        if all(key in other and other[key] == value for other in settings)
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not shared, in order of appearance."""
    same = shared(settings)
    return list(dict.fromkeys(key for other in settings for key in other if key not in same))


def value_text(value: Any) -> str:
    """A setting's value for people: short numbers, no quotes, long lists abridged."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format(value, ".6g")
    if isinstance(value, list):
        words = [value_text(item) for item in value]
        return ", ".join(words) if len(words) <= MANY else f"{', '.join(words[:4])}, … ({len(words)} in all)"
    return value if isinstance(value, str) else json.dumps(value)


def values_text(values: Sequence[Any]) -> str:
    """The distinct values among several runs; a dash where none has the setting."""
    return value_text(list(dict.fromkeys(value_text(value) for value in values))) if values else "–"
