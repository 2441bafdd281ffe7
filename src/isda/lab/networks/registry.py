"""Networks by name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from isda.lab.choices import did_you_mean, positive_integer
from isda.lab.extras import needed_by
from isda.lab.networks.cifar import (
    cnn_13,
    densenet,
    fast_cnn,
    resnet,
    resnext,
    shake_shake,
    wide_resnet,
    wide_resnet_28_10,
)
from isda.lab.networks.imagenet import TORCHVISION_PREFIX, imagenet_densenet, imagenet_resnet, torchvision_network
from isda.lab.networks.network import Network
from isda.lab.networks.timm_models import TIMM_PREFIX, timm_network

CIFAR: dict[str, Callable[..., Network]] = {
    **{f"resnet-{depth}": partial(resnet, depth=depth, gated=False) for depth in (8, 14, 20, 32, 110)},
    "se-resnet-110": partial(resnet, depth=110, gated=True),
    "wide-resnet-10-2": partial(wide_resnet, depth=10, widening=2),
    "wide-resnet-16-2": partial(wide_resnet, depth=16, widening=2),
    "wide-resnet-16-8": partial(wide_resnet, depth=16, widening=8),
    "wide-resnet-28-10": wide_resnet_28_10,
    "resnext-29-8x64d": partial(resnext, depth=29, cardinality=8, group_width=64),
    "densenet-bc-40-12": partial(densenet, depth=40, growth=12),
    "densenet-bc-100-12": partial(densenet, depth=100, growth=12),
    "shake-shake-26-2x32d": partial(shake_shake, depth=26, base_width=32),
    "shake-shake-26-2x112d": partial(shake_shake, depth=26, base_width=112),
    "cnn-13": cnn_13,
    "fast-cnn": fast_cnn,
}
"""Networks for images of about 32x32 pixels."""

IMAGENET: dict[str, Callable[..., Network]] = {
    "resnet-50": partial(imagenet_resnet, builder="resnet50"),
    "resnet-101": partial(imagenet_resnet, builder="resnet101"),
    "resnet-152": partial(imagenet_resnet, builder="resnet152"),
    "densenet-121": partial(imagenet_densenet, depth=121),
    "densenet-265": partial(imagenet_densenet, depth=265),
    "resnext-50-32x4d": partial(imagenet_resnet, builder="resnext50_32x4d"),
    "resnext-101-32x8d": partial(imagenet_resnet, builder="resnext101_32x8d"),
}
"""Networks for images of about 224x224 pixels."""


def names() -> list[str]:
    """The names that :func:`create` accepts, beside ``timm:NAME`` and ``torchvision:NAME``.

    Example:
        >>> "wide-resnet-28-10" in names()
        True
    """
    return [*CIFAR, *IMAGENET]


@needed_by("networks.create")
def create(name: str, num_classes: int, **options: Any) -> Network:
    """Build a network by name, with random weights (``timm:`` models can take ``pretrained=True``).

    Args:
        name: one of :func:`names`, ``timm:NAME`` for any model of timm, or ``torchvision:NAME`` for a classifier of
            torchvision.
        num_classes: number of logits C.
        options: what the family takes: ``in_channels`` everywhere, ``width`` (a factor on the channel counts) and
            ``dropout`` (a rate) where the family has them; what the library takes for its names.

    Returns:
        A :class:`Network`: ``network.features(x)`` is (N, A), ``network.classifier`` an ``nn.Linear``,
        ``network.feature_dim`` is A, and ``network(x)`` the logits (N, C).

    Raises:
        ValueError: an unknown name or option (with the nearest known one), or an option out of range.

    Example:
        >>> create("resnet-20", num_classes=100, in_channels=1, width=0.5).feature_dim
        32
    """
    positive_integer("num_classes", num_classes)
    positive_integer("in_channels", options.get("in_channels", 3))
    if name.startswith(TIMM_PREFIX):
        return timm_network(name.removeprefix(TIMM_PREFIX), num_classes=num_classes, **options)
    if name.startswith(TORCHVISION_PREFIX):
        return torchvision_network(name.removeprefix(TORCHVISION_PREFIX), num_classes=num_classes, **options)
    factory = CIFAR.get(name) or IMAGENET.get(name)
    if factory is None:
        known = f"; known are {', '.join(names())}, {TIMM_PREFIX}NAME and {TORCHVISION_PREFIX}NAME"
        raise ValueError(f"unknown network {name!r}{did_you_mean(name, names()) or known}")
    # The name of the network has settled the arguments of the partial.
    settled = {"num_classes", *(factory.keywords if isinstance(factory, partial) else ())}
    allowed = [option for option in inspect.signature(factory).parameters if option not in settled]
    for option in options:
        if option not in allowed:
            hint = did_you_mean(option, allowed) or f"; it takes {', '.join(allowed)}"
            raise ValueError(f"{name} has no option {option!r}{hint}")
    return factory(num_classes=num_classes, **options)
