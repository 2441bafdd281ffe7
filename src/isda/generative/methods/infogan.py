"""InfoGAN (Chen et al., 2016): codes of the generator can be read from its images.

Published without labels, its ten-valued code finds clusters that need not be classes. Here that code is the class, and
the labels of real images are kept: the network that reads the code, Q, also learns to name the classes of real images.
So a code has the class's meaning; the two continuous codes find theirs without any label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isda.engine.method import Outcome
from isda.errors import of_type
from isda.generative.batches import Batch, Drawn
from isda.generative.losses import code_loss, logistic_discriminator, logistic_generator
from isda.generative.methods.acgan import class_loss
from isda.generative.methods.base import GenerativeMethod, told_apart
from isda.networks.generative.discriminators import Judgement

__all__ = ["InfoGAN"]


class InfoGAN(GenerativeMethod):
    """Q shares all layers but the last with the discriminator, as published."""

    name = "infogan"
    codes = 2

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What may follow the colon."""

        code_weight: float = 0.1
        """Weight of the continuous codes; that of the class is 1."""

        def __post_init__(self) -> None:
            if not 0 <= self.code_weight <= 100:
                raise ValueError(f"code_weight must lie in 0..100, got {self.code_weight}")

    @classmethod
    def told_of_discriminator(cls) -> dict[str, Any]:
        """It names the class, and finds the codes."""
        return {"names_class": True, "codes": cls.codes}

    def discriminator_terms(self, network: nn.Module, real: Batch, generated: Batch, drawn: Drawn) -> Outcome:
        """Real or generated; the code of generated images; the class of real ones."""
        seen, made = network(*real), network(*generated)
        terms = {
            "adversarial": logistic_discriminator(seen.scores, made.scores),
            **self._information(made, drawn),
            "real_class": class_loss(seen.class_logits, real.labels),
        }
        return Outcome(terms, {"told_apart": told_apart(seen.scores, made.scores)})

    def generator_terms(self, network: nn.Module, generated: Batch, drawn: Drawn) -> dict[str, Tensor]:
        """Images that pass for real, and from which Q reads the code."""
        made = network(*generated)
        return {"adversarial": logistic_generator(made.scores), **self._information(made, drawn)}

    def _information(self, made: Judgement, drawn: Drawn) -> dict[str, Tensor]:
        """-E log Q(c | G(z, c)): minus the bound on the mutual information, but for the entropy of the code."""
        codes = drawn.latent[:, -self.codes :]
        found = code_loss(of_type(made.code_mean, Tensor), of_type(made.code_log_variance, Tensor), codes)
        class_logits = of_type(made.class_logits, Tensor)
        return {"class": class_loss(class_logits, drawn.labels), "codes": self.options.code_weight * found}
