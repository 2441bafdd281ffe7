"""How deep each parameter of a network lies, for learning rates that fall from the classifier to the first layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from isda.networks.network import Network

__all__ = ["layer_rates"]


def layer_rates(network: Network, decay: float) -> dict[nn.Parameter, float]:
    """The share of the learning rate of each parameter: decay^k for the k-th layer below the classifier.

    A layer is what timm counts as one (a block), or a child of the body for networks that are not timm's. The
    classifier has the whole rate (Howard and Ruder, 2018; the form with one factor is that of BEiT).

    Example:
        >>> from isda import networks
        >>> network = networks.create("timm:test_resnet", num_classes=3)
        >>> rates = layer_rates(network, 0.5)
        >>> rates[network.classifier.weight], rates[network.body.layer4[0].conv1.weight]
        (1.0, 0.5)
        >>> rates[network.body.conv1[0].weight]
        0.03125
    """
    depths = _depths(network.body)
    top = max(depths.values(), default=-1) + 1
    rates = {parameter: decay ** (top - depths[name]) for name, parameter in network.body.named_parameters()}
    return rates | dict.fromkeys(network.classifier.parameters(), 1.0)


def _depths(body: Any) -> dict[str, int]:
    """The number of the layer, from the image on, of each parameter."""
    if hasattr(body, "group_matcher"):
        from timm.models import group_parameters

        numbers: dict[str, int] = group_parameters(body, body.group_matcher(coarse=False), reverse=True)
    else:
        order: dict[str, int] = {}
        numbers = {name: order.setdefault(name.partition(".")[0], len(order)) for name, _ in body.named_parameters()}
    # What was the classifier's own layer may be empty now.
    dense = {number: position for position, number in enumerate(sorted(set(numbers.values())))}
    return {name: dense[number] for name, number in numbers.items()}
