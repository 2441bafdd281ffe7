"""Figures 6, 7, 13 and 14: what augmented features look like, by the reverse mapping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from isda.analysis.inversion.drawing import PAGE, InversionOptions, draw_inversion
from isda.reproduce.experiment import FigureExperiment, Looking
from isda.reproduce.outcome import Outcome
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier, generator

__all__ = ["Figure6", "Figure7", "Figure13", "Figure14", "Inversion"]

ITERATIONS = {"paper": 10_000, "small": 1000, "smoke": 10}


class Inversion(FigureExperiment):
    """ResNet-110 with ISDA, and a Wasserstein GAN per class."""

    images: ClassVar[int] = 10
    augmented: ClassVar[int] = 4
    data: ClassVar[str] = "cifar10"

    def all_trainings(self) -> list[Training]:
        """A classifier and a generator of the same images."""
        return [classifier(self.data, "resnet-110", "isda"), generator(self.data, "wgan")]

    def draw(self, made: Mapping[str, Outcome], looking: Looking) -> list[Path]:
        """Both pictures and their page in a folder."""
        network, makes = (_first(made, one) for one in self.all_trainings())
        options = InversionOptions(
            images=self.images, augmented=self.augmented, iterations=ITERATIONS[looking.scale.name]
        )
        folder = looking.folder / self.name
        draw_inversion(network, makes, folder, options, looking.data_root, looking.device)
        return [folder / PAGE]


class Figure6(Inversion):
    """In the text."""

    name = "figure-6"
    drawn = "Images of CIFAR-10 whose features ISDA has moved, beside the originals."


class Figure13(Inversion):
    """In the appendix: more of them."""

    name = "figure-13"
    drawn = "More images of CIFAR-10 whose features ISDA has moved."
    images = 20


class Figure7(Inversion):
    """On ImageNet in the paper."""

    name = "figure-7"
    drawn = "Images whose features ISDA has moved: ImageNet in the paper, CIFAR-10 here."
    note = (
        "The paper has ImageNet and BigGAN, whose weights are not ours to pass on: with them, "
        "isda.analysis.inversion.biggan inverts the features of any run (docs/visualize.md). CIFAR-10 stands here."
    )


class Figure14(Figure7):
    """In the appendix: what is nearest among the training images."""

    name = "figure-14"
    drawn = "The training images nearest to augmented ones: ImageNet in the paper, CIFAR-10 here."
    augmented = 1


def _first(made: Mapping[str, Outcome], training: Training) -> Path:
    outcome = made.get(training.name)
    if outcome is None or not outcome.folders:
        raise ValueError(f"{training.name} has no finished run")
    return outcome.folders[min(outcome.folders)]
