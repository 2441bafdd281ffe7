"""What a trained network sees in generated images: the run's own normalisation and features, differentiably.

A pipeline's normalisation takes 8-bit images or floating point in [0, 1] alike, and gives the same for both; all of
them (channel statistics, each image's own, ZCA) have gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isda.analysis.observing import Observed
from isda.data.augment import Compose
from isda.data.normalise import as_float

__all__ = ["Sight", "sight_of"]


@dataclass(frozen=True)
class Sight:
    """f and what goes before it.

    Args:
        normalise: images (N, C, H, W) in [0, 1] to pixels as the network takes them.
        features: those to features (N, A).
    """

    normalise: Callable[[Tensor], Tensor]
    features: Callable[[Tensor], Tensor]


def sight_of(observed: Observed, device: torch.device | str = "cpu") -> Sight:
    """How the network of a run sees images of its data set's size.

    Raises:
        ValueError: its images are cropped from larger ones on the way to the network.
    """
    trained = observed.trained
    if trained.config.image_size is None or trained.config.augment == "imagenet":
        raise ValueError(
            f"the run must be of images that the network sees as a whole, {trained.config.data} is cropped from larger "
            "ones"
        )
    network, dtype = trained.network.to(device), trained.config.dtype
    # A whitening has tensors, which stay where they are for whoever else uses the run.
    pipeline = Compose(
        *(deepcopy(one).to(device) if isinstance(one, nn.Module) else one for one in trained.pipeline.transforms)
    )
    return Sight(lambda images: pipeline(as_float(images)).to(dtype), network.features)
