"""A trained generator measured once more, as its run was judged or by another judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from isda.data import DataSet
from isda.engine.folder.finished import finished_run
from isda.engine.processes import Processes
from isda.errors import of_type
from isda.generative.config import Config
from isda.generative.evaluation import Comparison, Measured
from isda.generative.judge import FOLDER, Judge, load_judge
from isda.generative.split import split_data
from isda.generators import TrainedGenerator, load_generator

__all__ = ["Trained", "load_trained"]


@dataclass(frozen=True)
class Trained:
    """A generator with its final weights, and the configuration it was trained with."""

    config: Config
    generator: TrainedGenerator

    def judge(self, data: DataSet, named: Path | None = None) -> Judge:
        """The judge of the run, or another one."""
        return load_judge(named or Path(self.config.judge or self.generator.folder / FOLDER), data)

    def measure(self, data: DataSet, judge: Judge, processes: Processes, seed: int | None = None) -> Measured:
        """Its figures, against the images that the run was compared to.

        Args:
            data: the run's data set.
            judge: who sees.
            processes: who measures.
            seed: of the latent vectors; the run's by default.

        Raises:
            ValueError: the data set has changed.
        """
        config = self.config
        if config.data_digest != data.digest:
            raise ValueError(f"{data.name} must be the data set of the run, it has changed since the run was started")
        images, labels, indices = split_data(config, data)[1]
        real = of_type(images[indices], Tensor)
        comparison = Comparison.to(real, labels[indices], config.classes, judge, processes)
        return comparison.measure(self.generator.network.to(processes.device), config.seed if seed is None else seed)


def load_trained(folder: Path) -> Trained:
    """The generator of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    generator = load_generator(folder)
    run, stored = finished_run(folder)
    return Trained(Config.from_stored(stored, run.config_file), generator)
