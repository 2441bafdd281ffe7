"""The methods of `isda generate train` by name; each is a file of this room."""

from isda.engine.named_method import find_named
from isda.generative.methods.acgan import ACGAN
from isda.generative.methods.base import GenerativeMethod, Players, Turn
from isda.generative.methods.cgan import CGAN
from isda.generative.methods.infogan import InfoGAN
from isda.generative.methods.wgan import WGAN

__all__ = ["METHODS", "GenerativeMethod", "Players", "Turn", "find_method"]

METHODS: dict[str, type[GenerativeMethod]] = {method.name: method for method in (WGAN, CGAN, ACGAN, InfoGAN)}


def find_method(name: str) -> type[GenerativeMethod]:
    """One of METHODS, or package.module.Class of the user's own."""
    return find_named(name, METHODS, GenerativeMethod)  # type: ignore[type-abstract]
