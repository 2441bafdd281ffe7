"""Losses and methods of GANs: WGAN (one critic per class), conditional GAN, AC-GAN and InfoGAN.

InfoGAN's categorical code is the class; the network Q also learns the labels of real images.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.lab.choices import expect_type
from isda.lab.devices import send
from isda.lab.engine.method import NamedMethod, Outcome, find_method_class
from isda.lab.networks.generative import (
    CriticPerClass,
    Discriminator,
    DiscriminatorOutput,
    ImageGenerator,
    create_generator,
)
from isda.lab.tasks.gan.data import LatentBatch, RealBatch
from isda.lab.tasks.gan.settings import CLIPPED, DCGAN, PENALISED, GANConfig, PlayerOptimiser


def logistic_discriminator(real: Tensor, generated: Tensor) -> Tensor:
    """-E log s(D(x)) - E log(1 - s(D(G(z)))), s the logistic function (Goodfellow et al., 2014).

    Args:
        real: (N,) scores of real images.
        generated: (M,) scores of generated ones.

    Example:
        >>> round(logistic_discriminator(torch.zeros(2), torch.zeros(2)).item(), 4)
        1.3863
    """
    return F.softplus(-real).mean() + F.softplus(generated).mean()


def logistic_generator(generated: Tensor) -> Tensor:
    """-E log s(D(G(z))), the form that does not saturate.

    Example:
        >>> round(logistic_generator(torch.zeros(2)).item(), 4)
        0.6931
    """
    return F.softplus(-generated).mean()


def wasserstein_critic(real: Tensor, generated: Tensor) -> Tensor:
    """E f(G(z)) - E f(x): minus the critic's estimate of the Wasserstein distance (Arjovsky et al., 2017).

    Example:
        >>> wasserstein_critic(torch.tensor([1.0, 2.0]), torch.tensor([0.5])).item()
        -1.0
    """
    return generated.mean() - real.mean()


def wasserstein_generator(generated: Tensor) -> Tensor:
    """-E f(G(z)).

    Example:
        >>> wasserstein_generator(torch.tensor([1.0, 2.0])).item()
        -1.5
    """
    return -generated.mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, generated: Tensor, share: Tensor) -> Tensor:
    """E (|grad f(x')| - 1)^2 at x' = e x + (1 - e) G(z) (Gulrajani et al., 2017).

    Args:
        critic: images (N, C, H, W) to scores (N,), each a function of its own image.
        real: (N, C, H, W).
        generated: (N, C, H, W).
        share: (N,) the e of each pair, in [0, 1].

    Example:
        >>> images = torch.zeros(2, 1, 1, 1)
        >>> gradient_penalty(lambda x: 3 * x.flatten(), images, images, torch.zeros(2)).item()
        4.0
    """
    share = share.view(-1, 1, 1, 1)
    between = (share * real + (1 - share) * generated).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    # The norm has no gradient at a slope of exactly zero.
    norms = (slopes.flatten(1).square().sum(1) + 1e-24).sqrt()
    return (norms - 1).square().mean()


def code_loss(mean: Tensor, log_variance: Tensor, codes: Tensor) -> Tensor:
    """-E sum_i log N(c_i; m_i, v_i): the codes' part of infoGAN's bound on the mutual information, without H(c).

    I(c; G(z, c)) >= H(c) + E log Q(c | G(z, c)), with Q a Gaussian (Chen et al., 2016).

    Args:
        mean: (N, codes) predicted by the discriminator.
        log_variance: (N, codes).
        codes: (N, codes) inputs of the generator.

    Example:
        >>> zero = torch.zeros(1, 1)
        >>> round(code_loss(zero, zero, zero).item(), 4)
        0.9189
    """
    squares = (codes - mean).square() * torch.exp(-log_variance)
    return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(1).mean()


class Players(nn.Module):
    """A generator and its discriminator.

    Args:
        generator: makes images of classes.
        discriminator: scores images of classes, see `isda.lab.networks.generative.Discriminator`.
    """

    def __init__(self, generator: ImageGenerator, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator


class PlayerInputs(NamedTuple):
    """The batch of one player."""

    drawn: LatentBatch
    """The inputs of the generator."""
    real: RealBatch | None
    """Real images for the discriminator; None for the generator."""


class GenerativeMethod(NamedMethod):
    """A method of `isda generate train`, by its name on the command line; a subclass defines the loss of each player.

    A subclass is made with ``(options, network, config)``; state that must survive a resume goes into buffers and
    parameters of the players. Parameters of its own are not trained.
    """

    network: ClassVar[str] = "dcgan"
    """Its generator, see `isda.lab.networks.generative.create_generator`."""
    balanced: ClassVar[bool] = False
    """Whether every batch has equally many images of each class."""
    codes: ClassVar[int] = 0
    """Dimensions of the generator's codes."""
    discriminator_options: ClassVar[dict[str, Any]] = {}
    """Inputs and outputs of `Discriminator` besides images and scores."""
    discriminator_steps: int = 1
    """Steps of the discriminator for one of the generator."""

    def __init__(self, options: Any, network: Any, config: GANConfig) -> None:
        super().__init__()
        self.options = options

    @classmethod
    def optimiser(cls, options: dict[str, Any]) -> PlayerOptimiser:
        """The optimiser of its publication, given the method's options."""
        return DCGAN

    @classmethod
    def turns(cls, options: dict[str, Any]) -> int:
        """Steps of the discriminator for one of the generator, given the method's options."""
        return cls.discriminator_steps

    @classmethod
    def make_generator(cls, config: GANConfig) -> ImageGenerator:
        """The generator of a configuration, with random weights."""
        return create_generator(config.network, len(config.classes), **config.network_options)

    @classmethod
    def make_discriminator(cls, config: GANConfig) -> nn.Module:
        """The discriminator of a configuration, with random weights."""
        return Discriminator(**network_shape(config), **cls.discriminator_options)

    @abstractmethod
    def discriminator_terms(
        self, network: nn.Module, real: RealBatch, generated: RealBatch, drawn: LatentBatch
    ) -> Outcome:
        """What the discriminator minimises; generated images carry no gradient to the generator.

        The outputs are what is recorded: (N,) tensors by name, averaged over the images of an epoch.
        """

    @abstractmethod
    def generator_terms(self, network: nn.Module, generated: RealBatch, drawn: LatentBatch) -> dict[str, Tensor]:
        """What the generator minimises, through the discriminator ``network``."""

    def after_discriminator(self, network: nn.Module) -> None:
        """After each optimiser step of the discriminator."""

    def forward(self, network: nn.Module, batch: PlayerInputs) -> Outcome:
        """The terms of the generator if the batch has no real images, else those of the discriminator."""
        network = expect_type(network, Players)
        drawn = batch.drawn
        if batch.real is None:
            generated = RealBatch(network.generator(drawn.latent, drawn.labels), drawn.labels)
            return Outcome(self.generator_terms(network.discriminator, generated, drawn), {})
        with torch.no_grad():
            generated = RealBatch(network.generator(drawn.latent, drawn.labels), drawn.labels)
        return self.discriminator_terms(network.discriminator, batch.real, generated, drawn)


def discriminator_accuracy(real: Tensor, generated: Tensor) -> Tensor:
    """(N,) percentage of each pair of a real and a generated image whose scores have the right sign.

    Example:
        >>> discriminator_accuracy(torch.tensor([1.0, -1.0]), torch.tensor([-2.0, -2.0]))
        tensor([100.,  50.])
    """
    return 50 * ((real > 0).to(real.dtype) + (generated < 0).to(real.dtype)).detach()


def network_shape(config: GANConfig) -> dict[str, Any]:
    """The arguments of a discriminator that describe classes and images."""
    options = config.network_options
    return {"num_classes": len(config.classes)} | {name: options[name] for name in ("channels", "size", "width")}


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

    def __init__(self, options: Options, network: Any, config: GANConfig) -> None:
        super().__init__(options, network, config)
        self.discriminator_steps = options.n_critic

    @classmethod
    def optimiser(cls, options: dict[str, Any]) -> PlayerOptimiser:
        """RMSprop with clipped weights, Adam with a penalty."""
        return PENALISED if options.get("penalty") else CLIPPED

    @classmethod
    def turns(cls, options: dict[str, Any]) -> int:
        """The option n_critic."""
        return int(options.get("n_critic", cls.Options.n_critic))

    @classmethod
    def make_discriminator(cls, config: GANConfig) -> nn.Module:
        """A critic for each class."""
        return CriticPerClass(**network_shape(config))

    def discriminator_terms(
        self, network: nn.Module, real: RealBatch, generated: RealBatch, drawn: LatentBatch
    ) -> Outcome:
        """E f(G(z)) - E f(x), and the gradient penalty if there is one."""
        real_scores, scores = network(*real).scores, network(*generated).scores
        terms = {"critic": wasserstein_critic(real_scores, scores)}
        if self.options.penalty:

            def critic(images: Tensor) -> Tensor:
                return network(images, real.labels).scores

            penalty = gradient_penalty(critic, real.images, generated.images, drawn.share)
            terms["penalty"] = self.options.penalty * penalty
        return Outcome(terms, {"wasserstein": (real_scores - scores).detach()})

    def generator_terms(self, network: nn.Module, generated: RealBatch, drawn: LatentBatch) -> dict[str, Tensor]:
        """-E f(G(z))."""
        return {"critic": wasserstein_generator(network(*generated).scores)}

    @torch.no_grad()
    def after_discriminator(self, network: nn.Module) -> None:
        """Clip the weights."""
        if not self.options.penalty:
            for parameter in network.parameters():
                parameter.clamp_(-self.options.clip, self.options.clip)


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-E log P(y | x) of logits (N, K) for classes (N,) on the CPU.

    Example:
        >>> round(class_loss(torch.zeros(1, 10), torch.tensor([3])).exp().item(), 3)
        10.0
    """
    return F.cross_entropy(logits, send(labels, logits.device))


class LogisticGAN(GenerativeMethod):
    """The logistic losses of both players, to which a subclass may add terms."""

    def discriminator_terms(
        self, network: nn.Module, real: RealBatch, generated: RealBatch, drawn: LatentBatch
    ) -> Outcome:
        """-log D(x) - log(1 - D(G(z))), and further terms."""
        on_real, on_generated = network(*real), network(*generated)
        terms = {"adversarial": logistic_discriminator(on_real.scores, on_generated.scores)}
        logits = on_real.class_logits
        terms |= self.further_terms(on_generated, drawn, None if logits is None else class_loss(logits, real.labels))
        return Outcome(terms, {"told_apart": discriminator_accuracy(on_real.scores, on_generated.scores)})

    def generator_terms(self, network: nn.Module, generated: RealBatch, drawn: LatentBatch) -> dict[str, Tensor]:
        """-log D(G(z)), and further terms."""
        on_generated = network(*generated)
        return {"adversarial": logistic_generator(on_generated.scores)} | self.further_terms(on_generated, drawn)

    def further_terms(
        self, on_generated: DiscriminatorOutput, drawn: LatentBatch, real_class: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Terms besides the logistic loss.

        Args:
            on_generated: outputs of the discriminator.
            drawn: inputs of the generator.
            real_class: the class loss of real images, for the discriminator's terms.
        """
        return {}


class CGAN(LogisticGAN):
    """The discriminator scores pairs of an image and a class."""

    name = "cgan"
    discriminator_options = {"reads_class": True}  # noqa: RUF012, a class variable of the base


class ACGAN(LogisticGAN):
    """The discriminator minimises -(L_S + L_C), the generator -(L_C - L_S), L_S in the form that does not saturate."""

    name = "acgan"
    discriminator_options = {"names_class": True}  # noqa: RUF012, a class variable of the base

    def further_terms(
        self, on_generated: DiscriminatorOutput, drawn: LatentBatch, real_class: Tensor | None = None
    ) -> dict[str, Tensor]:
        """L_C: the class, of generated and of real images."""
        loss = class_loss(expect_type(on_generated.class_logits, Tensor), drawn.labels)
        return {"class": loss if real_class is None else real_class + loss}


class InfoGAN(LogisticGAN):
    """InfoGAN (Chen et al., 2016) with labels: the categorical code is the class.

    The network Q that predicts the codes also learns the classes of real images, so that the categorical code, which
    finds clusters if there are no labels, means the class; the two continuous codes are learned without labels. Q
    shares all layers but the last with the discriminator, as published.
    """

    name = "infogan"
    codes = 2
    discriminator_options = {"names_class": True, "codes": 2}  # noqa: RUF012, a class variable of the base

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What may follow the colon."""

        code_weight: float = 0.1
        """Weight of the continuous codes; that of the class is 1."""

        def __post_init__(self) -> None:
            if not 0 <= self.code_weight <= 100:
                raise ValueError(f"code_weight must lie in 0..100, got {self.code_weight}")

    def further_terms(
        self, on_generated: DiscriminatorOutput, drawn: LatentBatch, real_class: Tensor | None = None
    ) -> dict[str, Tensor]:
        """-E log Q(c | G(z, c)), minus the bound on the mutual information without H(c); the class of real images."""
        mean, log_variance, class_logits = (
            expect_type(output, Tensor)
            for output in (on_generated.code_mean, on_generated.code_log_variance, on_generated.class_logits)
        )
        codes = code_loss(mean, log_variance, drawn.latent[:, -self.codes :])
        terms = {"class": class_loss(class_logits, drawn.labels), "codes": self.options.code_weight * codes}
        return terms if real_class is None else terms | {"real_class": real_class}


METHODS: dict[str, type[GenerativeMethod]] = {method.name: method for method in (WGAN, CGAN, ACGAN, InfoGAN)}


def find_method(name: str) -> type[GenerativeMethod]:
    """One of METHODS, or package.module.Class of the user's own."""
    return find_method_class(name, METHODS, GenerativeMethod)  # type: ignore[type-abstract]
