"""Networks that tell real images from generated ones, and say what else they see in them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from isda.networks.generative.by_class import ClassTable
from isda.networks.generative.generators import one_hot
from isda.networks.generative.layers import DiscriminatorBody

__all__ = ["CriticPerClass", "Discriminator", "Judgement"]


class Judgement(NamedTuple):
    """What a discriminator says of a batch."""

    scores: Tensor
    """(N,) logits of being real."""
    class_logits: Tensor | None = None
    """(N, K), where it names classes."""
    code_mean: Tensor | None = None
    """(N, codes) and ..."""
    code_log_variance: Tensor | None = None
    """... (N, codes): the Gaussian that it believes the codes are from."""


class Discriminator(nn.Module):
    """One network for all classes.

    Args:
        num_classes: K.
        channels: of the images.
        size: their side in pixels.
        width: factor on the numbers of channels.
        reads_class: it is told the class of each image, as K further channels of zeros and ones (CGAN).
        names_class: it says which class it sees (ACGAN, infoGAN).
        codes: of how many codes it says where it believes them to be (infoGAN).

    Example:
        >>> discriminator = Discriminator(10, 1, 8, width=0.25, names_class=True, codes=2)
        >>> seen = discriminator(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
        >>> seen.scores.shape, seen.class_logits.shape, seen.code_mean.shape
        (torch.Size([4]), torch.Size([4, 10]), torch.Size([4, 2]))
    """

    def __init__(
        self,
        num_classes: int,
        channels: int,
        size: int,
        *,
        width: float = 1.0,
        reads_class: bool = False,
        names_class: bool = False,
        codes: int = 0,
    ) -> None:
        super().__init__()
        self.num_classes, self.reads_class = num_classes, reads_class
        self.body = DiscriminatorBody(channels + num_classes * reads_class, size, width)
        self.score = nn.Linear(self.body.feature_dim, 1)
        self.names = nn.Linear(self.body.feature_dim, num_classes) if names_class else None
        self.finds = nn.Linear(self.body.feature_dim, 2 * codes) if codes else None

    def forward(self, images: Tensor, labels: Tensor) -> Judgement:
        """Of images (N, channels, size, size) in [-1, 1]; only CGAN looks at their classes (N,), on the CPU."""
        if self.reads_class:
            planes = one_hot(labels, self.num_classes, images)[:, :, None, None]
            images = torch.cat([images, planes.expand(-1, -1, *images.shape[2:])], 1)
        features = self.body(images)
        class_logits = None if self.names is None else self.names(features)
        mean, log_variance = (None, None) if self.finds is None else self.finds(features).chunk(2, 1)
        return Judgement(self.score(features).squeeze(1), class_logits, mean, log_variance)


class CriticPerClass(nn.Module):
    """One critic for each class; they share nothing, and run in one call.

    Example:
        >>> CriticPerClass(10, 3, 32, width=0.1)(torch.zeros(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])).scores.shape
        torch.Size([4])
    """

    def __init__(self, num_classes: int, channels: int, size: int, *, width: float = 1.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.body = DiscriminatorBody(channels, size, width, groups=num_classes)
        inputs = num_classes * self.body.feature_dim
        self.score = nn.Conv2d(inputs, num_classes, 1, groups=num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> Judgement:
        """Scores of images (N, channels, size, size) by the critics of their classes (N,), these on the CPU."""
        table = ClassTable(labels, self.num_classes)
        features = self.body(table.laid_out(images).flatten(1, 2))
        return Judgement(table.picked(self.score(features[:, :, None, None]).flatten(1)))
