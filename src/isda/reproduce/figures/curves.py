"""Figure 5: test error over the epochs, with and without AutoAugment, with and without ISDA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isda.analysis.figures import COLOURS, drawn, new_figure, write_page
from isda.reproduce.experiment import FigureExperiment, Looking
from isda.reproduce.outcome import Outcome
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier

__all__ = ["Figure5"]

AUGMENTATIONS = {"": None, " + AutoAugment": "autoaugment"}
METHODS = {"basic": "cross-entropy", "ISDA": "isda"}


class Figure5(FigureExperiment):
    """Wide-ResNet-28-10 on CIFAR-100."""

    name = "figure-5"
    drawn = "Test error of Wide-ResNet-28-10 on CIFAR-100 over the epochs, with and without AutoAugment and ISDA."

    def all_trainings(self) -> list[Training]:
        """Four, measured after every epoch."""
        return list(self._by_label().values())

    def draw(self, made: Mapping[str, Outcome], looking: Looking) -> list[Path]:
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
            for more, augment in AUGMENTATIONS.items()
            for method, words in METHODS.items()
        }
