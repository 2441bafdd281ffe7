"""The paper's Figures 5 to 11, 13 and 14 as experiments.

The analyses are imported when a figure is drawn: listing experiments and training need none of them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from isda.lab.reproduce.classifier_trainings import classifier, generator, semi_supervised
from isda.lab.reproduce.experiment import FigureContext, FigureExperiment
from isda.lab.reproduce.tables import imagenet_pair
from isda.lab.reproduce.training import Outcomes, Scale, Training

if TYPE_CHECKING:
    from isda.lab.analysis.inversion.page import InversionOptions
    from isda.lab.analysis.studies import StudyCell

FIGURE_5_AUGMENTATIONS = {"": None, " + AutoAugment": "autoaugment"}
FIGURE_5_METHODS = {"basic": "cross-entropy", "ISDA": "isda"}


def _first_run(outcomes: Outcomes, training: Training) -> Path | None:
    """The finished run of a training with the smallest seed."""
    folders = outcomes[training.name].folders if training.name in outcomes else {}
    return folders[min(folders)] if folders else None


class Figure5(FigureExperiment):
    """Wide-ResNet-28-10 on CIFAR-100."""

    name = "figure-5"
    title_text = "Test error of Wide-ResNet-28-10 on CIFAR-100 over the epochs, with and without AutoAugment and ISDA."

    def all_trainings(self) -> list[Training]:
        """Four, evaluated after every epoch."""
        return list(self._by_label().values())

    def draw(self, outcomes: Outcomes, context: FigureContext) -> list[Path]:
        """One page with one chart."""
        from isda.lab.analysis.pages import COLOURS, new_figure, svg_figure, write_page

        figure, (axes,) = new_figure(1, size=(7, 4))
        for number, (label, training) in enumerate(self._by_label().items()):
            outcome = outcomes.get(training.name)
            curves = [run.curve("test/error") for run in outcome.runs.values()] if outcome else []
            if not curves:
                continue
            epochs = [epoch for epoch, _ in curves[0]]
            means = [sum(curve[index][1] for curve in curves) / len(curves) for index in range(len(epochs))]
            axes.plot(epochs, means, color=COLOURS[number], linestyle="-" if "ISDA" in label else "--", label=label)
        if not axes.lines:
            raise ValueError("none of its trainings has a finished run")
        axes.set(xlabel="epoch", ylabel="test error, %")
        axes.legend(frameon=False, fontsize=8)
        path = context.folder / f"{self.name}-curves.html"
        chart = svg_figure(figure, f"Means over seeds. {context.scale.sentence}")
        write_page(path, "isda reproduce", "Figure 5", self.title, [chart], self.command(context))
        return [path]

    def _by_label(self) -> dict[str, Training]:
        return {
            label + suffix: classifier("cifar100", "wide-resnet-28-10", method, augment=augment)
            for suffix, augment in FIGURE_5_AUGMENTATIONS.items()
            for label, method in FIGURE_5_METHODS.items()
        }


INVERSION_ITERATIONS = {"paper": 10_000, "small": 1000, "smoke": 10}
INVERSION_RATES = (10.0, 1.0)
"""The paper's, of step I and step II; they suit its number of iterations only."""


class InversionFigure(FigureExperiment):
    """ResNet-32 with ISDA, and a Wasserstein GAN per class."""

    images: ClassVar[int] = 10
    augmented: ClassVar[int] = 4
    biggan: str | None = None
    """A generator in place of the trained one."""

    def all_trainings(self) -> list[Training]:
        """A classifier and a generator of the same images."""
        return [classifier("cifar10", "resnet-32", "isda"), generator("cifar10", "wgan")]

    def options(self, scale: Scale) -> InversionOptions:
        """The paper's optimisation at its scale; else fewer iterations with rates of our own and early stopping."""
        from isda.lab.analysis.inversion.page import InversionOptions

        options = InversionOptions(
            images=self.images, augmented=self.augmented, iterations=INVERSION_ITERATIONS[scale.name]
        )
        return replace(options, lr=INVERSION_RATES, tolerance=0.0) if scale.full else options

    def draw(self, outcomes: Outcomes, context: FigureContext) -> list[Path]:
        """Both pictures and their page in a folder."""
        from isda.lab.analysis.inversion.page import PAGE, draw_inversion

        runs = []
        for training in self.all_trainings():
            run = _first_run(outcomes, training)
            if run is None:
                raise ValueError(f"{training.name} has no finished run")
            runs.append(run)
        folder = context.folder / self.name
        source = self.biggan or runs[1]
        draw_inversion(runs[0], source, folder, self.options(context.scale), context.data_root, context.device)
        return [folder / PAGE]


class Figure6(InversionFigure):
    """In the text."""

    name = "figure-6"
    title_text = "Images of CIFAR-10 whose features ISDA has moved, beside the originals."


class Figure13(InversionFigure):
    """In the appendix, with more images."""

    name = "figure-13"
    title_text = "More images of CIFAR-10 whose features ISDA has moved."
    images = 20


IMAGENET_STRENGTH = 0.2
"""λ of the draws on ImageNet, of the authors' script; the λ0 of Table 1's ResNet-50 is 7.5."""


class ImageNetFigure(InversionFigure):
    """ResNet-50 of Table 1 and a BigGAN, if there is one; else the networks of Figure 6, on CIFAR-10.

    Args:
        biggan: see `isda.lab.analysis.inversion.open_biggan`.
    """

    def __init__(self, biggan: str | None = None) -> None:
        self.biggan = biggan
        self.note = (
            "The paper shows ImageNet, with the images of a BigGAN. This page has the classifier and the generator of "
            "Figure 6 instead; --biggan NAME:WEIGHTS makes the figure on ImageNet."
        )
        if biggan:
            self.note = (
                "The paper does not say which network, rates and strength it has on ImageNet. The network is the "
                "ResNet-50 with ISDA of Table 1 (in the authors' script torchvision's, without ISDA), the strength "
                f"that of their script ({IMAGENET_STRENGTH:g}), the rates are ours; the generator is {biggan}."
            )

    @property
    def title(self) -> str:
        """With the data that it shows."""
        return f"{self.title_text}: ImageNet{'' if self.biggan else ' in the paper, CIFAR-10 here'}."

    def with_biggan(self, word: str) -> ImageNetFigure:
        """The figure on ImageNet."""
        return type(self)(word)

    def all_trainings(self) -> list[Training]:
        """A classifier, and a generator unless a BigGAN is given."""
        return [imagenet_pair("resnet-50")[1]] if self.biggan else super().all_trainings()

    def options(self, scale: Scale) -> InversionOptions:
        """Rates of ours and the strength of the authors' script on ImageNet."""
        options = super().options(scale)
        if not self.biggan:
            return options
        return replace(options, lr=None, tolerance=type(options).tolerance, strength=IMAGENET_STRENGTH)


class Figure7(ImageNetFigure):
    """In the text."""

    name = "figure-7"
    title_text = "Images whose features ISDA has moved"


class Figure14(ImageNetFigure):
    """In the appendix, with the nearest training images."""

    name = "figure-14"
    title_text = "The training images nearest to augmented ones"
    augmented = 1


class PagesFigure(FigureExperiment):
    """A figure with one page per part, drawn for the parts that have the runs they need."""

    missing: ClassVar[str] = "none of its trainings has a finished run"
    """Error if no part has."""

    @abstractmethod
    def parts(self) -> Mapping[str, object]:
        """The parts by name."""

    @abstractmethod
    def draw_part(self, name: str, page: Path, outcomes: Outcomes, context: FigureContext) -> bool:
        """Write the page of a part; False if it lacks runs."""

    def draw(self, outcomes: Outcomes, context: FigureContext) -> list[Path]:
        """A page for each part."""
        pages = {name: context.folder / f"{self.name}-{name}.html" for name in self.parts()}
        written = [page for name, page in pages.items() if self.draw_part(name, page, outcomes, context)]
        if not written:
            raise ValueError(self.missing)
        return written


MAPPED_IMAGES, FEW_MAPPED_IMAGES = 2000, 500
"""Test images of a map at the paper's scale, and below it; ours."""


class Figure8(PagesFigure):
    """ResNet-110, and VAT with 4,000 labels, on CIFAR-10."""

    name = "figure-8"
    title_text = "t-SNE maps of the features of CIFAR-10's test images, with and without ISDA."

    def all_trainings(self) -> list[Training]:
        """Two pairs."""
        return [training for pair in self.parts().values() for training in pair]

    def parts(self) -> dict[str, list[Training]]:
        """Each pair."""
        return {
            "supervised": [classifier("cifar10", "resnet-110", method) for method in ("cross-entropy", "isda")],
            "semi-supervised": [semi_supervised("cifar10", method, 4000) for method in ("vat", "vat+isda")],
        }

    def draw_part(self, name: str, page: Path, outcomes: Outcomes, context: FigureContext) -> bool:
        """The maps of a pair, by `isda map` in a process of its own."""
        runs = [str(run) for training in self.parts()[name] if (run := _first_run(outcomes, training))]
        if runs:
            images = MAPPED_IMAGES if context.scale.full else FEW_MAPPED_IMAGES
            words = ["--images", str(images), "--device", str(context.device)]
            words += [] if context.data_root is None else ["--data-root", str(context.data_root)]
            run_apart([sys.executable, "-m", "isda", "map", *runs, *words, "--out", str(page)])
        return bool(runs)


TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK")


def run_apart(command: Sequence[str]) -> None:
    """Run a command in a process of its own, which may die in native code without ending this one.

    Raises:
        ValueError: it failed, with the last line of its error messages, or died.

    Example:
        >>> run_apart([sys.executable, "-c", "raise SystemExit('no such run')"])
        Traceback (most recent call last):
        ValueError: no such run
    """
    # Without the variables of torchrun, whose processes it would wait for.
    environment = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() if ended.returncode > 0 else []
        died = f"a process died (exit status {ended.returncode}): {shlex.join(command)}"
        raise ValueError(lines[-1] if lines else died)


class Figure9(PagesFigure):
    """ResNet-110 on both CIFAR sets, with the tilted bound as a third line."""

    name = "figure-9"
    title_text = "The published and the tilted bound beside the expected loss, over the training of ResNet-110."

    def all_trainings(self) -> list[Training]:
        """One for each data set, with checkpoints over all of it."""
        return list(self.parts().values())

    def parts(self) -> dict[str, Training]:
        """The data sets."""
        return {data: classifier(data, "resnet-110", "isda") for data in ("cifar10", "cifar100")}

    def draw_part(self, name: str, page: Path, outcomes: Outcomes, context: FigureContext) -> bool:
        """The bounds over the training on a data set."""
        from isda.lab.analysis.tightness import TightnessOptions, draw_tightness

        run = _first_run(outcomes, self.parts()[name])
        if run is not None:
            options = TightnessOptions() if context.scale.full else TightnessOptions(images=50, draws=100)
            draw_tightness(run, page, options, context.data_root, context.device)
        return run is not None


STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
"""The paper's grid, and the larger strengths of its Figure 11."""
UNCERTAINTY_WEIGHTS = ("uncertainty_weight=0.0001,0.001,0.01,0.1,1",)
"""Ours: the paper tunes the weight of the feature uncertainty loss and does not say from which values."""


class StudyFigure(PagesFigure):
    """Panels, each a study: `isda study` at the paper's settings."""

    study: ClassVar[str]
    missing = "a panel needs a finished run of its baseline and one more"

    @abstractmethod
    def parts(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """The cells of each panel, the baseline first."""

    def all_trainings(self) -> list[Training]:
        """Those of all panels."""
        return [training for cells in self.parts().values() for _, training in cells]

    def draw_part(self, name: str, page: Path, outcomes: Outcomes, context: FigureContext) -> bool:
        """A panel."""
        from isda.lab.analysis.studies import STUDIES, compare_cells, write_study

        cells = self.parts()[name]
        runs = [outcomes[training.name].runs if training.name in outcomes else {} for _, training in cells]
        if not (runs[0] and any(runs[1:])):
            return False
        rows = compare_cells([cell for cell, _ in cells], runs)
        write_study(page, STUDIES[self.study], rows, self.command(context), f"{self.name}.html")
        return True


class Figure10(StudyFigure):
    """Wide-ResNet-28-10 on CIFAR-100, with Cutout and with AutoAugment."""

    name = "figure-10"
    title_text = "Test error against the number of explicitly drawn features, and ISDA as their limit."
    note = (
        "λ0 is chosen once for each augmentation, on held-out images for ISDA, and is that of all its cells. The "
        "weight of the uncertainty loss of learned covariances is chosen on held-out images for each cell."
    )
    study = "explicit"

    def parts(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """One panel for each augmentation."""
        from isda.lab.analysis.studies import ExplicitStudy

        return {
            augment: [
                (cell, self._training(cell.method, augment))
                for cell in ExplicitStudy.cells(["isda"], ExplicitStudy.values)
            ]
            for augment in ("cutout", "autoaugment")
        }

    @staticmethod
    def _training(method: str, augment: str) -> Training:
        data, network = "cifar100", "wide-resnet-28-10"
        if method in ("cross-entropy", "isda"):
            return classifier(data, network, method, augment=augment)
        learned = "covariance=learned" in method
        return classifier(
            data,
            network,
            method,
            tuned=learned,
            search=UNCERTAINTY_WEIGHTS if learned else (),
            chosen_from=classifier(data, network, "isda", augment=augment),
            augment=augment,
        )


class Figure11(StudyFigure):
    """Supervised: Wide-ResNet-28-10 with Cutout on CIFAR-100; semi-supervised: VAT on CIFAR-10 with 4,000 labels."""

    name = "figure-11"
    title_text = "Test error against the strength λ0, supervised and semi-supervised."
    study = "sensitivity"

    def parts(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """Both panels."""
        from isda.lab.analysis.studies import SensitivityStudy

        return {
            "supervised": [
                (cell, classifier("cifar100", "wide-resnet-28-10", cell.method, tuned=False, augment="cutout"))
                for cell in SensitivityStudy.cells(["isda"], STRENGTHS)
            ],
            "semi-supervised": [
                (cell, semi_supervised("cifar10", cell.method, 4000))
                for cell in SensitivityStudy.cells(["vat+isda"], STRENGTHS)
            ],
        }
