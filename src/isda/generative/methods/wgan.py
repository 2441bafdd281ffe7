"""Wasserstein GAN (Arjovsky et al., 2017): as in the paper, a generator, and a critic, for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isda.engine.method import Outcome
from isda.generative.batches import Batch, Drawn
from isda.generative.config import Config
from isda.generative.losses import gradient_penalty, wasserstein_critic, wasserstein_generator
from isda.generative.methods.base import GenerativeMethod, shape_of
from isda.generative.recipes import CLIPPED, PENALISED, Optimiser
from isda.networks.generative import CriticPerClass

__all__ = ["WGAN"]


class WGAN(GenerativeMethod):
    """Weights of the critics are clipped after each of their steps, or slopes are penalised instead."""

    name = "wgan"
    network = "dcgan-per-class"
    balanced = True

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What may follow the colon."""

        clip: float = 0.01
        """Weights of the critics are kept within [-clip, clip]."""
        penalty: float = 0.0
        """Weight of the gradient penalty, 10 in its publication; above 0 nothing is clipped."""
        n_critic: int = 5
        """Steps of the critics for one of the generators."""

        def __post_init__(self) -> None:
            if not 0 < self.clip <= 100:
                raise ValueError(f"clip must be more than 0 and at most 100, got {self.clip}")
            if not 0 <= self.penalty <= 1e6:
                raise ValueError(f"penalty must lie in 0..1e6, got {self.penalty}")
            if not 1 <= self.n_critic <= 1000:
                raise ValueError(f"n_critic must lie in 1..1000, got {self.n_critic}")

    def __init__(self, options: Options, network: Any, config: Config) -> None:
        super().__init__(options, network, config)
        self.discriminator_steps = options.n_critic

    @classmethod
    def optimiser(cls, options: dict[str, Any]) -> Optimiser:
        """RMSprop with clipped weights, Adam with a penalty."""
        return PENALISED if options.get("penalty") else CLIPPED

    @classmethod
    def make_discriminator(cls, config: Config) -> nn.Module:
        """A critic for each class."""
        return CriticPerClass(**shape_of(config))

    def discriminator_terms(self, network: nn.Module, real: Batch, generated: Batch, drawn: Drawn) -> Outcome:
        """E f(G(z)) - E f(x), and the penalty where there is one."""
        seen, made = network(*real).scores, network(*generated).scores
        terms = {"critic": wasserstein_critic(seen, made)}
        if self.options.penalty:

            def critic(images: Tensor) -> Tensor:
                return network(images, real.labels).scores

            found = gradient_penalty(critic, real.images, generated.images, drawn.share)
            terms["penalty"] = self.options.penalty * found
        return Outcome(terms, {"wasserstein": (seen - made).detach()})

    def generator_terms(self, network: nn.Module, generated: Batch, drawn: Drawn) -> dict[str, Tensor]:
        """-E f(G(z))."""
        return {"critic": wasserstein_generator(network(*generated).scores)}

    @torch.no_grad()
    def after_discriminator(self, network: nn.Module) -> None:
        """Clip the weights."""
        if not self.options.penalty:
            for parameter in network.parameters():
                parameter.clamp_(-self.options.clip, self.options.clip)
