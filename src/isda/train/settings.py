"""What a user can ask of a run. The text below each setting is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run; what is left out comes from the paper's recipe for the network, or is what the help says."""

    data: str | None = None
    """digits (if left out), cifar10, cifar100, svhn, fashion-mnist, imagenet, a folder of classes, or an .npz file."""
    network: str | None = None
    """Network, see `isda networks`; by default fast-cnn, or resnet-50 on imagenet."""
    method: str | None = None
    """cross-entropy, isda (if left out) or isda-tilted; options follow a colon: isda:lambda_0=1,covariance=diagonal.
    Semi-supervised: supervised (the floor), pi-model, temporal-ensembling, mean-teacher, vat or fixmatch, each also
    with +isda: mean-teacher+isda:eta_1=1,bound=tilted."""
    seed: int | None = None
    """0 if left out; decides the labelled subset, the initial weights, the order of batches and every augmentation."""
    scale: Literal["paper", "small", "smoke"] | None = None
    """Share of the paper's epochs: all (paper, if left out), a tenth (small), an eightieth (smoke); milestones and
    averaging window shrink with it."""
    labels: int | None = None
    """Train on this many images, equally many of each class, drawn with the seed; all of them by default. To
    semi-supervised methods it says how many images keep their label."""
    unlabelled: int | None = None
    """Semi-supervised methods use this many further images without labels, drawn with the seed; all by default. An
    epoch is one pass over labelled and unlabelled images together."""
    labelled_per_batch: int | None = None
    """Labelled images in each step of a semi-supervised method, which come on top of batch_size unlabelled ones; by
    default in the proportion of the method's publication."""
    held_out: int | None = None
    """Hold out this many training images and evaluate on them instead of the test set, to choose settings with."""
    lambda_0: float | None = None
    """ISDA's strength at the end of training."""
    epochs: int | None = None
    """Number of epochs instead of the scale's."""
    evaluate_every: int | None = None
    """Measure the error after every so many epochs (each, if left out), and after those that the result averages."""
    batch_size: int | None = None
    """Images per step, over all processes together; in semi-supervised methods the unlabelled ones."""
    lr: float | None = None
    """Initial learning rate."""
    weight_decay: float | None = None
    """L2 penalty on all parameters."""
    augment: str | None = None
    """none, crop, crop-flip, translate, translate-flip, cutout, randaugment, autoaugment or imagenet; for
    semi-supervised methods none, translate or translate-flip."""
    width: float | None = None
    """Factor on the network's channel counts, where the family has it."""
    dropout: float | None = None
    """Dropout rate, where the family has it."""
    precision: Literal["float32", "float64", "bfloat16", "float16"] | None = None
    """float32 if left out; bfloat16 and float16 are mixed precision (autocast; float16 with loss scaling)."""
    ema: float | None = None
    """Evaluate an exponential moving average of the weights with this decay, e.g. 0.999."""
    channels_last: bool = False
    """Keep images and convolutions channels-last: faster on recent GPUs and on many CPUs."""
    compile: bool = False
    """Run the network through torch.compile."""
    network_options: dict[str, str] = field(default_factory=dict)
    """Further options of the network as KEY VALUE pairs."""

    def asked(self) -> dict[str, Any]:
        """What the user has said, without what was left out."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in said.items() if value is not None and value is not False and value != {}}
