"""timm models as a :class:`Network`, and their state dicts under timm's names. timm is imported on first use."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from isda.lab.choices import did_you_mean
from isda.lab.networks.network import Network

TIMM_PREFIX = "timm:"


def timm_network(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> Network:
    """Build timm's model ``name``; its body gives the features before the classifier ("pre-logits").

    The model's own classifier is kept, with its initial or pretrained weights, where it is one linear layer (or the
    same thing written as a 1x1 convolution). A model that ends otherwise, e.g. in two classifiers, gets a new linear
    layer on its pre-logits. ``options`` are those of ``timm.create_model``.
    """
    body = _model(name, num_classes, in_channels, options)
    classifier = _as_linear(body.get_classifier())
    body.reset_classifier(0)
    if classifier is None:
        classifier = nn.Linear(getattr(body, "head_hidden_size", body.num_features), num_classes)
    return Network(body, classifier)


def timm_state(network: Network, name: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a network that `timm_network` built, from the same name and options, under timm's names.

    Raises:
        ValueError: timm's model does not end in one linear layer.
    """
    further = {key: value for key, value in options.items() if key not in ("in_channels", "pretrained")}
    model = _model(name, network.classifier.out_features, options.get("in_channels", 3), further)
    expected, tensors = model.state_dict(), network.body.state_dict()
    for path, module in model.named_modules():
        if module is model.get_classifier():
            for part, tensor in network.classifier.state_dict().items():
                tensors[f"{path}.{part}"] = tensor.view_as(expected.get(f"{path}.{part}", tensor))
    if {key: value.shape for key, value in tensors.items()} != {key: value.shape for key, value in expected.items()}:
        raise ValueError(f"timm:{name} must end in one linear layer to be written under timm's names, it does not")
    return tensors


def check_timm_model(name: str) -> None:
    """Raise a ValueError, with the nearest known name, unless timm has a model of this name."""
    import timm

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")


def _model(name: str, num_classes: int, in_channels: int, options: Mapping[str, Any]) -> Any:
    import timm

    check_timm_model(name)
    try:
        return timm.create_model(name, num_classes=num_classes, in_chans=in_channels, **options)
    except TypeError as error:
        raise ValueError(f"timm:{name} does not take the options {sorted(options)}: {error}") from error


def _as_linear(classifier: object) -> nn.Linear | None:
    """The classifier as a linear layer, or None where it is something else."""
    if isinstance(classifier, nn.Conv2d) and classifier.kernel_size == (1, 1) and classifier.groups == 1:
        linear = nn.Linear(classifier.in_channels, classifier.out_channels, bias=classifier.bias is not None)
        state = classifier.state_dict()
        linear.load_state_dict(state | {"weight": state["weight"].flatten(1)})
        return linear
    return classifier if isinstance(classifier, nn.Linear) else None
