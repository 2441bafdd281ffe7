"""What a user can ask of a classification run. The text below each setting is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from isda.engine.settings import RunSettings

__all__ = ["HubOrFile", "Settings"]


class HubOrFile(str):
    """Where weights come from: a file, or what the option stands for without one."""

    bare: ClassVar[str] = "hub"
    """The value of the option alone."""
    metavar: ClassVar[str] = "[FILE]"


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Settings of a run; what is left out comes from the paper's recipe for the network, or is what the help says."""

    data: str | None = None
    """digits (if left out), cifar10, cifar100, svhn, fashion-mnist, imagenet, a folder of classes, or an .npz file."""
    network: str | None = None
    """Network, see `isda networks`; by default fast-cnn, or resnet-50 on imagenet."""
    method: str | None = None
    """cross-entropy, isda (if left out), isda-tilted or a rival: large-margin, distribution-net, label-smoothing,
    disturb-label, focal, lq, confidence-penalty or center, the last six also with +isda (docs/rivals.md). For long
    tails: logit-adjustment, ldam, class-balanced, each also with +isda, risda, metasaug (docs/longtail.md). Options
    follow a colon: isda:lambda_0=1,covariance=diagonal. Semi-supervised: supervised (the floor), pi-model,
    temporal-ensembling, mean-teacher, vat or fixmatch, each also with +isda: mean-teacher+isda:eta_1=1,bound=tilted;
    `isda train --method vat --help` has their settings. A class of your own: package.module.Class:key=value
    (docs/extend.md)."""
    labels: int | None = None
    """Train on this many images, equally many of each class, drawn with the seed; all of them by default."""
    imbalance: float | None = None
    """Train on a long tail: class sizes fall exponentially, the first class has this many times as many images as the
    last (100 in most publications); drawn with the seed, --labels in all. What a run is judged by stays as it is."""
    held_out: int | None = None
    """Hold out this many training images and evaluate on them instead of the test set, to choose settings with."""
    lambda_0: float | None = None
    """ISDA's strength at the end of training."""
    augment: str | None = None
    """none, crop, crop-flip, translate, translate-flip, cutout, randaugment, autoaugment, imagenet or resized-crop."""
    pretrained: str | HubOrFile | None = None
    """Fine-tune: the network, timm:NAME or one for ImageNet, begins with the weights of a file (safetensors, or as
    torch.save writes them) or, where none is named, with those that timm has on the hub; its classifier is new, and
    images are brought to the size and normalisation that it knows (docs/finetuning.md)."""
    freeze: bool = False
    """Train the classifier only; all below it stays as it is pretrained, running figures of batch norm included."""
    input_size: int | None = None
    """Side of the images that a pretrained network sees, instead of the one it was trained with."""
    optimiser: Literal["sgd", "adamw"] | None = None
    """sgd, with Nesterov momentum, or adamw; the recipe's if left out. Another than the recipe's has a learning rate
    and a weight decay of its own."""
    warm_up: str | None = None
    """Let the learning rate rise in a line over so many epochs, 2 or 0.5, or steps: 100steps."""
    layer_decay: float | None = None
    """Each layer learns at this share of the rate of the one above it; the classifier has the whole rate."""
    width: float | None = None
    """Factor on the network's channel counts, where the family has it."""
    dropout: float | None = None
    """Dropout rate, where the family has it."""
    generated: str | None = None
    """Run folder of a generator of the same classes (`isda generate train`), whose images are part of every batch."""
    generated_share: float | None = None
    """Their share of a batch, 1/6 if left out as in the paper; the batch size stays the same."""
    network_options: dict[str, str] = field(default_factory=dict)
    """Further options of the network as KEY VALUE pairs."""
