"""Auxiliary classifier GANs (Odena et al., 2017): the discriminator names the class of what it sees."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from isda.devices import send
from isda.engine.method import Outcome
from isda.generative.batches import Batch, Drawn
from isda.generative.losses import logistic_discriminator, logistic_generator
from isda.generative.methods.base import GenerativeMethod, told_apart

__all__ = ["ACGAN", "class_loss"]


class ACGAN(GenerativeMethod):
    """The discriminator minimises -(L_S + L_C), the generator -(L_C - L_S), L_S in the form that does not saturate."""

    name = "acgan"

    @classmethod
    def told_of_discriminator(cls) -> dict[str, Any]:
        """It names the class."""
        return {"names_class": True}

    def discriminator_terms(self, network: nn.Module, real: Batch, generated: Batch, drawn: Drawn) -> Outcome:
        """L_S: real or generated; L_C: the class, of both kinds of images."""
        seen, made = network(*real), network(*generated)
        terms = {
            "adversarial": logistic_discriminator(seen.scores, made.scores),
            "class": class_loss(seen.class_logits, real.labels) + class_loss(made.class_logits, generated.labels),
        }
        return Outcome(terms, {"told_apart": told_apart(seen.scores, made.scores)})

    def generator_terms(self, network: nn.Module, generated: Batch, drawn: Drawn) -> dict[str, Tensor]:
        """Images that pass for real, and for their class."""
        made = network(*generated)
        return {
            "adversarial": logistic_generator(made.scores),
            "class": class_loss(made.class_logits, generated.labels),
        }


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-E log P(y | x) of logits (N, K) for classes (N,) that the host has.

    Example:
        >>> import torch
        >>> round(class_loss(torch.zeros(1, 10), torch.tensor([3])).exp().item(), 3)
        10.0
    """
    return F.cross_entropy(logits, send(labels, logits.device))
