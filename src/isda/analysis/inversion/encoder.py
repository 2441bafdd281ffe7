"""Differentiable encoder of a run: its normalisation and features, applied to generated images.

Every normalisation (channel statistics, per image, ZCA) takes uint8 or floats in [0, 1] and is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isda.analysis.training_features import Observed
from isda.data.augment import Compose
from isda.data.normalise import as_float


@dataclass(frozen=True)
class Encoder:
    """f and what goes before it.

    Args:
        normalise: images (N, C, H, W) in [0, 1] to pixels as the network takes them.
        features: those to features (N, A).
    """

    normalise: Callable[[Tensor], Tensor]
    features: Callable[[Tensor], Tensor]


def encoder_of_run(observed: Observed, device: torch.device | str = "cpu") -> Encoder:
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
    return Encoder(lambda images: pipeline(as_float(images)).to(dtype), network.features)
