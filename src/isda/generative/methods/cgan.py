"""Conditional generative adversarial nets (Mirza and Osindero, 2014): both players are told the class."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isda.engine.method import Outcome
from isda.generative.batches import Batch, Drawn
from isda.generative.losses import logistic_discriminator, logistic_generator
from isda.generative.methods.base import GenerativeMethod, told_apart

__all__ = ["CGAN"]


class CGAN(GenerativeMethod):
    """The discriminator judges pairs of an image and a class."""

    name = "cgan"

    @classmethod
    def told_of_discriminator(cls) -> dict[str, Any]:
        """It reads the class."""
        return {"reads_class": True}

    def discriminator_terms(self, network: nn.Module, real: Batch, generated: Batch, drawn: Drawn) -> Outcome:
        """-log D(x | y) - log(1 - D(G(z | y) | y))."""
        seen, made = network(*real).scores, network(*generated).scores
        return Outcome({"adversarial": logistic_discriminator(seen, made)}, {"told_apart": told_apart(seen, made)})

    def generator_terms(self, network: nn.Module, generated: Batch, drawn: Drawn) -> dict[str, Tensor]:
        """-log D(G(z | y) | y)."""
        return {"adversarial": logistic_generator(network(*generated).scores)}
