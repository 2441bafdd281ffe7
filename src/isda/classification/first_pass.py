"""The pass before the first step: ISDA's statistics see every training image once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from isda.classification.batches import Batch
from isda.losses import SemanticLoss
from isda.networks import Network
from isda.networks.modes import in_eval_mode

__all__ = ["criteria_of", "fill_statistics"]


def criteria_of(method: nn.Module) -> list[SemanticLoss]:
    """The criteria over augmented features within a method, whatever it puts around them."""
    return [module for module in method.modules() if isinstance(module, SemanticLoss)]


@torch.no_grad()
def fill_statistics(criteria: Iterable[SemanticLoss], network: Network, batches: Iterable[Batch]) -> None:
    """Let the covariances of criteria learn from the features of a network in eval mode.

    A pretrained network has features worth knowing from the first step on; with statistics that start empty, the first
    epochs would be augmented along what a handful of images happen to show.

    Args:
        criteria: on the classifier of the network.
        network: its mode is as before afterwards.
        batches: images as the network takes them, equally many batches in each process.
    """
    with in_eval_mode(network):
        for batch in batches:
            features = network.features(batch.images)
            for criterion in criteria:
                criterion.covariance.update(features, batch.targets)
