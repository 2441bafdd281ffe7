"""Weights of a trained classifier into the backbone of a detector, whatever their names begin with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["load_backbone_weights"]

PREFIXES = ("", "body.", "backbone.", "features.", "body.features.", "backbone.body.", "module.", "model.")
"""What names may begin with: torchvision's, this package's, those of DenseNets, of wrappers and of other tools."""


def load_backbone_weights(body: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Give a detector's backbone (``detector.backbone.body``) the weights of a classifier.

    Args:
        body: whose tensors must all be among the weights, after one of the PREFIXES.
        weights: by name; those of layers that the detector does not have, such as a classifier, are left.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing or has another shape.
    """
    wanted = body.state_dict()
    # Older files lack the counters of batch normalisation, which nothing here reads.
    needed = [name for name in wanted if not name.endswith("num_batches_tracked")]
    prefix = max(PREFIXES, key=lambda one: sum(one + name in weights for name in needed))
    found = {name: weights[prefix + name] for name in wanted if prefix + name in weights}
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(
            f"{source} must hold the weights of the backbone, it lacks {len(missing)} of {len(needed)}, the first of "
            f"them {missing[0]}"
        )
    for name in needed:
        if found[name].shape != wanted[name].shape:
            raise ValueError(
                f"{source} must fit the backbone, but {name} is {tuple(found[name].shape)}, not "
                f"{tuple(wanted[name].shape)}"
            )
    body.load_state_dict(wanted | found)
