"""Any model of the timm library as a :class:`Network`; timm is imported when one is built."""

from typing import Any

from torch import nn

from isda.choices import did_you_mean
from isda.networks.network import Network

__all__ = ["timm_network"]


def timm_network(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> Network:
    """Build timm's model ``name``; its body gives the features before the classifier ("pre-logits").

    The model's own classifier is kept, with its initial or pretrained weights, where it is one linear layer (or the
    same thing written as a 1x1 convolution). A model that ends otherwise, e.g. in two classifiers, gets a new linear
    layer on its pre-logits.

    Args:
        name: a name of ``timm.list_models()``, with or without a tag for pretrained weights.
        num_classes: number of logits.
        in_channels: channels of the images.
        options: handed to ``timm.create_model``, e.g. ``pretrained=True`` or ``drop_rate=0.2``.
    """
    import timm

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    try:
        body: Any = timm.create_model(name, num_classes=num_classes, in_chans=in_channels, **options)
    except TypeError as error:
        raise ValueError(f"timm:{name} does not take the options {sorted(options)}: {error}") from error
    classifier = _as_linear(body.get_classifier())
    body.reset_classifier(0)
    if classifier is None:
        classifier = nn.Linear(getattr(body, "head_hidden_size", body.num_features), num_classes)
    return Network(body, classifier)


def _as_linear(classifier: object) -> nn.Linear | None:
    """The classifier as a linear layer, or None where it is something else."""
    if isinstance(classifier, nn.Linear):
        return classifier
    if isinstance(classifier, nn.Conv2d) and classifier.kernel_size == (1, 1) and classifier.groups == 1:
        linear = nn.Linear(classifier.in_channels, classifier.out_channels, bias=classifier.bias is not None)
        linear.weight = nn.Parameter(classifier.weight.detach().flatten(1))
        if classifier.bias is not None:
            linear.bias = nn.Parameter(classifier.bias.detach())
        return linear
    return None
