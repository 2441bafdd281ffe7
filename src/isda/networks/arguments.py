"""Checks of the arguments that several families share; each returns the value it found good."""

__all__ = ["dropout_rate", "positive_integer", "scaled_channels"]


def positive_integer(name: str, value: object) -> int:
    """Return ``value`` if it is an integer of at least 1, and at most 10^9: more no machine could hold.

    Example:
        >>> positive_integer("num_classes", 10)
        10
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if value > 10**9:
        raise ValueError(f"{name} must be at most 10^9, got {value!r}")
    return value


def dropout_rate(value: object) -> float:
    """Return ``value`` if it is a probability below 1.

    Example:
        >>> dropout_rate(0.3)
        0.3
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"dropout must be a number in [0, 1), got {value!r}")
    return float(value)


def scaled_channels(channels: int, width: object) -> int:
    """The channel count times the width factor, rounded, at least 1.

    Example:
        >>> scaled_channels(128, 0.25)
        32
    """
    if not isinstance(width, int | float) or isinstance(width, bool) or not 0 < width < float("inf"):
        raise ValueError(f"width must be a positive number, got {width!r}")
    return max(1, round(channels * width))
