"""Weights of a trained classifier into the backbone of a detector, whatever their names begin with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from isda.networks.fitting import fitting_weights

__all__ = ["load_backbone_weights"]


def load_backbone_weights(body: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Give a detector's backbone (``detector.backbone.body``) the weights of a classifier.

    Args:
        body: whose tensors must all be among the weights, whatever their names begin with.
        weights: by name; those of layers that the detector does not have, such as a classifier, are left.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing or has another shape.
    """
    wanted = body.state_dict()
    body.load_state_dict(wanted | fitting_weights(wanted, weights, source).found)
