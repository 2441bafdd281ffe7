"""What a user can ask of a run that trains a generator. The text below each setting is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from isda.engine.settings import RunSettings

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Settings of a run; what is left out comes from the method's publication, or is what the help says."""

    data: str | None = None
    """digits (if left out), fashion-mnist, cifar10, cifar100, svhn or an .npz file: images of 8x8, 28x28 or 32x32."""
    network: str | None = None
    """Decided by the method: dcgan, or for wgan dcgan-per-class."""
    method: str | None = None
    """wgan (one generator and critic per class), cgan, acgan (if left out) or infogan; options follow a colon:
    wgan:penalty=10 has a gradient penalty instead of clipped weights. A class of your own: package.module.Class."""
    epochs: int | None = None
    """Number of epochs; by default as many as come nearest to 40,000 steps, times the scale."""
    evaluate_every: int | None = None
    """Measure after every so many epochs, and after the last; 20 times in all if left out."""
    batch_size: int | None = None
    """Real images per step, over all processes together, and as many generated ones; about 64 if left out."""
    lr: float | None = None
    """Learning rate of generator and discriminator; that of the method's publication if left out."""
    labels: int | None = None
    """Learn from this many images, equally many of each class, drawn with the seed; all of them by default."""
    held_out: int | None = None
    """Hold out this many training images and measure on them instead of the test set."""
    width: float | None = None
    """Factor on the channels of generator and discriminator; 1 if left out."""
    noise: int | None = None
    """Dimensions of the noise; 100 if left out."""
    judge: str | None = None
    """Run folder of the classifier on whose features images are judged; by default one is trained on the same data and
    kept in the folder judge of the run."""
