"""Formulas as MathML, which browsers show without a script, set as TeX would set them."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

__all__ = ["mathml"]

_CORRECTIONS = (
    # Capital Greek letters stand upright.
    (r"<mi>(&#x003[9A][0-9A-F];)</mi>", r'<mi mathvariant="normal">\1</mi>'),
    # "is distributed as" is a relation, with space around it.
    (r"<mi>&#x0007E;</mi>", r'<mo lspace="0.278em" rspace="0.278em">&#x0223C;</mo>'),
    # A minus after an opening bracket or a relation is a sign, not a difference.
    (
        r"(<mo[^>]*>(?:&#x00028;|\[|&#x0003D;|&#x02264;)</mo>)<mo>&#x02212;</mo>",
        r'\1<mo form="prefix" lspace="0" rspace="0">&#x02212;</mo>',
    ),
    # A logarithm keeps its distance from what it is taken of.
    (r"<mi>log</mi>", r'<mo form="prefix" lspace="0" rspace="0.167em">log</mo>'),
)


def mathml(text: str, *, block: bool) -> str:
    """The element ``math`` of a formula in TeX's notation.

    Args:
        text: without its dollars.
        block: whether it stands on a line of its own.
    """
    made: str = convert(text.strip(), display="block" if block else "inline")
    for pattern, better in _CORRECTIONS:
        made = re.sub(pattern, better, made)
    return made
