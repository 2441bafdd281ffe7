"""The paper's Figures 5 to 11, 13 and 14 as experiments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from isda.analysis.inversion.page import PAGE, InversionOptions, draw_inversion
from isda.analysis.maps import MapOptions, draw_maps
from isda.analysis.pages import COLOURS, drawn, new_figure, write_page
from isda.analysis.studies import STUDIES, StudyCell, compare_cells, write_study
from isda.analysis.tightness_page import TightnessOptions, draw_tightness
from isda.reproduce.classifier_trainings import classifier, generator, semi_supervised
from isda.reproduce.experiment import FigureContext, FigureExperiment
from isda.reproduce.training import Training, TrainingOutcome

FIGURE_5_AUGMENTATIONS = {"": None, " + AutoAugment": "autoaugment"}
FIGURE_5_METHODS = {"basic": "cross-entropy", "ISDA": "isda"}


class Figure5(FigureExperiment):
    """Wide-ResNet-28-10 on CIFAR-100."""

    name = "figure-5"
    drawn = "Test error of Wide-ResNet-28-10 on CIFAR-100 over the epochs, with and without AutoAugment and ISDA."

    def all_trainings(self) -> list[Training]:
        """Four, measured after every epoch."""
        return list(self._by_label().values())

    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """One page with one picture."""
        figure, (axes,) = new_figure(1, size=(7, 4))
        for number, (label, training) in enumerate(self._by_label().items()):
            outcome = made.get(training.name)
            curves = [run.curve("test/error") for run in outcome.runs.values()] if outcome else []
            if not curves:
                continue
            epochs = [epoch for epoch, _ in curves[0]]
            means = [sum(curve[place][1] for curve in curves) / len(curves) for place in range(len(epochs))]
            axes.plot(epochs, means, color=COLOURS[number], linestyle="-" if "ISDA" in label else "--", label=label)
        if not axes.lines:
            raise ValueError("none of its trainings has a finished run")
        axes.set(xlabel="epoch", ylabel="test error, %")
        axes.legend(frameon=False, fontsize=8)
        path = looking.folder / f"{self.name}-curves.html"
        told = f"Means over seeds. Scale {looking.scale.name}: {looking.scale.told}."
        command = f"isda reproduce {self.name} --scale {looking.scale.name}"
        write_page(path, "isda reproduce", "Figure 5", self.drawn, [drawn(figure, told)], command)
        return [path]

    def _by_label(self) -> dict[str, Training]:
        return {
            method + more: classifier("cifar100", "wide-resnet-28-10", words, augment=augment, evaluate_every=1)
            for more, augment in FIGURE_5_AUGMENTATIONS.items()
            for method, words in FIGURE_5_METHODS.items()
        }


INVERSION_ITERATIONS = {"paper": 10_000, "small": 1000, "smoke": 10}


class InversionFigure(FigureExperiment):
    """ResNet-110 with ISDA, and a Wasserstein GAN per class."""

    images: ClassVar[int] = 10
    augmented: ClassVar[int] = 4
    data: ClassVar[str] = "cifar10"

    def all_trainings(self) -> list[Training]:
        """A classifier and a generator of the same images."""
        return [classifier(self.data, "resnet-110", "isda"), generator(self.data, "wgan")]

    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """Both pictures and their page in a folder."""
        network, makes = (_first(made, one) for one in self.all_trainings())
        options = InversionOptions(
            images=self.images, augmented=self.augmented, iterations=INVERSION_ITERATIONS[looking.scale.name]
        )
        folder = looking.folder / self.name
        draw_inversion(network, makes, folder, options, looking.data_root, looking.device)
        return [folder / PAGE]


class Figure6(InversionFigure):
    """In the text."""

    name = "figure-6"
    drawn = "Images of CIFAR-10 whose features ISDA has moved, beside the originals."


class Figure13(InversionFigure):
    """In the appendix: more of them."""

    name = "figure-13"
    drawn = "More images of CIFAR-10 whose features ISDA has moved."
    images = 20


class Figure7(InversionFigure):
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


def _first(made: Mapping[str, TrainingOutcome], training: Training) -> Path:
    outcome = made.get(training.name)
    if outcome is None or not outcome.folders:
        raise ValueError(f"{training.name} has no finished run")
    return outcome.folders[min(outcome.folders)]


class Figure8(FigureExperiment):
    """ResNet-110, and VAT with 4,000 labels, on CIFAR-10."""

    name = "figure-8"
    drawn = "t-SNE maps of the features of CIFAR-10's test images, with and without ISDA."

    def all_trainings(self) -> list[Training]:
        """Two pairs."""
        return [one for pair in self._pairs().values() for one in pair]

    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """A page for each pair."""
        pages = []
        for name, pair in self._pairs().items():
            runs = [made[one.name].folders for one in pair if one.name in made]
            folders = [folders[min(folders)] for folders in runs if folders]
            if folders:
                options = MapOptions(images=2000 if looking.scale.full else 500)
                page = looking.folder / f"{self.name}-{name}.html"
                draw_maps(folders, page, options, looking.data_root, looking.device)
                pages.append(page)
        if not pages:
            raise ValueError("none of its trainings has a finished run")
        return pages

    def _pairs(self) -> dict[str, list[Training]]:
        return {
            "supervised": [classifier("cifar10", "resnet-110", method) for method in ("cross-entropy", "isda")],
            "semi-supervised": [semi_supervised("cifar10", method, 4000) for method in ("vat", "vat+isda")],
        }


CHECKPOINTS = 20


class Figure9(FigureExperiment):
    """ResNet-110 on both CIFAR sets, with the tilted bound as a third line of ours."""

    name = "figure-9"
    drawn = "The published and the tilted bound beside the expected loss itself, over the training of ResNet-110."

    def all_trainings(self) -> list[Training]:
        """One for each set; checkpoints are kept over all of it."""
        return [classifier(data, "resnet-110", "isda", checkpoints=CHECKPOINTS) for data in ("cifar10", "cifar100")]

    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """A page for each set."""
        pages = []
        options = TightnessOptions() if looking.scale.full else TightnessOptions(images=50, draws=100)
        for one in self.all_trainings():
            folders = made[one.name].folders if one.name in made else {}
            if folders:
                page = looking.folder / f"{self.name}-{one.settings.data}.html"
                draw_tightness(folders[min(folders)], page, options, looking.data_root, looking.device)
                pages.append(page)
        if not pages:
            raise ValueError("none of its trainings has a finished run")
        return pages


STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Those that the paper chooses from."""


class StudyFigure(FigureExperiment):
    """Panels, each a study: `isda study` at the paper's settings."""

    study: ClassVar[str]

    @abstractmethod
    def panels(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """The cells of each panel, the baseline first."""

    def all_trainings(self) -> list[Training]:
        """Those of all panels."""
        return [one for cells in self.panels().values() for _, one in cells]

    def draw(self, made: Mapping[str, TrainingOutcome], looking: FigureContext) -> list[Path]:
        """A page for each panel."""
        pages = []
        for name, cells in self.panels().items():
            found = [made[one.name].runs if one.name in made else {} for _, one in cells]
            if found[0] and any(found[1:]):
                rows = compare_cells([cell for cell, _ in cells], found)
                page = looking.folder / f"{self.name}-{name}.html"
                command = f"isda reproduce {self.name} --scale {looking.scale.name}"
                write_study(page, STUDIES[self.study], rows, command, f"{self.name}.html")
                pages.append(page)
        if not pages:
            raise ValueError("a panel needs a finished run of its baseline and one more")
        return pages


class Figure10(StudyFigure):
    """Wide-ResNet-28-10 on CIFAR-100, with Cutout and with AutoAugment."""

    name = "figure-10"
    drawn = "Test error against the number of explicitly drawn features, and ISDA as their limit."
    note = "All at λ0 = 0.5."
    study = "explicit"

    def panels(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """One for each augmentation."""
        kind = STUDIES[self.study]
        return {
            augment: [
                (cell, classifier("cifar100", "wide-resnet-28-10", cell.method, tuned=False, augment=augment))
                for cell in kind.cells(["isda:lambda_0=0.5"], kind.values)
            ]
            for augment in ("cutout", "autoaugment")
        }


class Figure11(StudyFigure):
    """Supervised: Wide-ResNet-28-10 with Cutout on CIFAR-100; semi-supervised: VAT on CIFAR-10 with 4,000 labels."""

    name = "figure-11"
    drawn = "Test error against the strength λ0, supervised and semi-supervised."
    study = "sensitivity"

    def panels(self) -> dict[str, list[tuple[StudyCell, Training]]]:
        """Both."""
        kind = STUDIES[self.study]
        supervised = kind.cells(["isda"], STRENGTHS)
        semi = kind.cells(["vat+isda"], STRENGTHS)
        return {
            "supervised": [
                (cell, classifier("cifar100", "wide-resnet-28-10", cell.method, tuned=False, augment="cutout"))
                for cell in supervised
            ],
            "semi-supervised": [(cell, semi_supervised("cifar10", cell.method, 4000)) for cell in semi],
        }
