"""The backbone of a detector and its initial weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torchvision.models import get_model, list_models

from isda.lab.choices import did_you_mean
from isda.lab.engine.options import options_from_text
from isda.lab.engine.run_folder import RunFolder
from isda.lab.files import file_digest
from isda.lab.networks.detection import Detector, create, load_backbone_weights
from isda.lab.networks.detection.detectors import IMAGENET_MEAN, IMAGENET_STD
from isda.lab.networks.registry import IMAGENET, names
from isda.lab.networks.timm_models import TIMM_PREFIX
from isda.lab.networks.weight_files import read_weights
from isda.lab.tasks.classification.trained import load_classifier
from isda.lab.tasks.detection.settings import DetectionConfig

TORCHVISION, TIMM = "torchvision", "timm"


@dataclass(frozen=True)
class DetectionBackbone:
    """A network and where its weights come from."""

    network: str
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    """A file, torchvision or timm; random if None."""
    digest: str = ""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


def find_backbone(name: str, options: Mapping[str, str], weights: str | None) -> DetectionBackbone:
    """The backbone of a name.

    Args:
        name: a run folder, the name of a network, or timm:NAME.
        options: of the network, as they are written.
        weights: a file, torchvision or timm; a run folder has its own.

    Raises:
        ValueError: none of these, or weights that are not there.
    """
    known = name in names() or name.startswith(TIMM_PREFIX)
    if not known and (Path(name).is_dir() or os.sep in name):
        backbone = _of_run(Path(name))
        if weights is not None or options:
            raise ValueError(f"backbone {name} is a run, which has its own weights and options")
        return backbone
    if not known:
        hint = did_you_mean(name, names()) or "; it must be a run folder, a network of `isda networks` or timm:NAME"
        raise ValueError(f"unknown backbone {name!r}{hint}")
    values = options_from_text(options)
    if weights is None:
        return DetectionBackbone(name, values)
    if weights in (TORCHVISION, TIMM):
        fits = name.startswith(TIMM_PREFIX) if weights == TIMM else _torchvision_name(name) in list_models()
        if not fits:
            raise ValueError(f"backbone_weights must be a file for {name}, {weights} has none, got {weights!r}")
        return DetectionBackbone(name, values, weights)
    path = Path(weights).expanduser()
    if not path.is_file():
        raise ValueError(f"backbone_weights must be torchvision, timm or a file, got {weights!r}")
    return DetectionBackbone(name, values, str(path.absolute()), file_digest(path))


def _of_run(folder: Path) -> DetectionBackbone:
    config = load_classifier(folder).config
    if config.channels != 3:
        raise ValueError(
            f"backbone must be a run on colour images, {folder} is on images of {config.channels} channels"
        )
    run = RunFolder(folder)
    return DetectionBackbone(
        config.network,
        config.network_options,
        str(run.weights_file.absolute()),
        file_digest(run.weights_file),
        config.mean,
        config.std,
    )


def _torchvision_name(name: str) -> str:
    """What torchvision calls a network: resnext-50-32x4d is its resnext50_32x4d."""
    return name.replace("-", "", 1).replace("-", "_") if name in IMAGENET else ""


def create_detector(config: DetectionConfig) -> Detector:
    """The network that a configuration names, with random weights."""
    options = {key: value for key, value in config.backbone_options.items() if key != "in_channels"}
    return create(
        config.network,
        len(config.classes),
        backbone=config.backbone,
        backbone_options=options,
        mean=config.mean,
        std=config.std,
        channels_last=config.channels_last,
        **config.detector_options,
    )


def initialise(detector: Detector, config: DetectionConfig) -> None:
    """Give the backbone its initial weights.

    Raises:
        ValueError: they are not there any more, or do not fit.
    """
    if config.backbone_weights:
        weights = _initial_weights(config, config.backbone_weights)
        load_backbone_weights(detector.backbone.body, weights, config.backbone_weights)


def _initial_weights(config: DetectionConfig, source: str) -> Mapping[str, Tensor]:
    if source not in (TORCHVISION, TIMM):
        return read_weights(Path(source))
    try:
        if source == TIMM:
            import timm

            name = config.backbone.removeprefix(TIMM_PREFIX)
            network: Any = timm.create_model(name, features_only=True, pretrained=True, **config.backbone_options)
        else:
            # Those of the paper's "original" rows: PyTorch's official ones of the first generation.
            network = get_model(_torchvision_name(config.backbone), weights="IMAGENET1K_V1")
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the weights of {config.backbone} from {source} could not be had: {reason}") from error
    weights: Mapping[str, Tensor] = network.state_dict()
    return weights
