"""DCGAN generators and discriminators for images of 8x8, 28x28 and 32x32 pixels.

>>> import torch
>>> from isda.lab.networks import generative
>>> network = generative.create_generator("dcgan", num_classes=10, channels=1, size=8, width=0.25)
>>> network(network.draw(3, torch.Generator().manual_seed(0)), torch.tensor([0, 1, 9])).shape
torch.Size([3, 1, 8, 8])
"""

from isda.lab.networks.generative.layers import SIZES, from_pixels, to_pixels
from isda.lab.networks.generative.models import (
    CriticPerClass,
    Discriminator,
    ImageGenerator,
    create_generator,
    generator_names,
)

__all__ = [
    "SIZES",
    "CriticPerClass",
    "Discriminator",
    "ImageGenerator",
    "create_generator",
    "from_pixels",
    "generator_names",
    "to_pixels",
]
