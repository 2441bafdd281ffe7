"""The training job of a GAN: two players with one optimizer each, warnings and sample grids."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda.lab.choices import expect_type
from isda.lab.data import DataSet
from isda.lab.data.display import contact_sheet
from isda.lab.engine.checkpoint import State
from isda.lab.engine.processes import FiniteLoss
from isda.lab.engine.task import Job, RunContext
from isda.lab.engine.trainer import AveragedNetwork
from isda.lab.networks.generative import ImageGenerator
from isda.lab.seeds import generator, mix
from isda.lab.tasks.common.data import split_data
from isda.lab.tasks.common.generators import make_images
from isda.lab.tasks.common.pictures import png_bytes, save_picture
from isda.lab.tasks.gan.data import RealBatch, RealBatches, draw_latents
from isda.lab.tasks.gan.evaluation import JUDGE_FOLDER, GeneratorComparison, GeneratorMetrics, load_judge, train_judge
from isda.lab.tasks.gan.methods import GenerativeMethod, PlayerInputs, Players
from isda.lab.tasks.gan.settings import GANConfig

COLLAPSED = 0.25
"""Of the diversity of real images."""
SATURATED = 99.5
"""Percent of images that the discriminator tells apart."""


def divergence_warnings(metrics: Mapping[str, float], evaluated_on: str) -> dict[str, str]:
    """What is wrong after an epoch, by the name of the problem.

    Args:
        metrics: of the epoch.
        evaluated_on: what precedes the names of figures.

    Example:
        >>> divergence_warnings({"epoch": 7, "test/diversity": 0.1}, "test")["collapse"]
        'the generator has collapsed: after epoch 7 its images of a class differ by 0.10 of what real ones do'
    """
    found, epoch = {}, metrics["epoch"]
    for name, classes in (("diversity", "a class"), ("least_diversity", "one class at least")):
        diversity = metrics.get(f"{evaluated_on}/{name}")
        if diversity is not None and diversity < COLLAPSED:
            found["collapse"] = (
                f"the generator has collapsed: after epoch {epoch} its images of {classes} differ by {diversity:.2f} "
                "of what real ones do"
            )
            break
    told_apart = metrics.get("train/told_apart")
    if told_apart is not None and told_apart > SATURATED:
        found["saturation"] = (
            f"the discriminator tells {told_apart:.1f}% of real and generated images apart in epoch {epoch}: the "
            "generator learns little from it"
        )
    return found


COLUMNS = 10

# Apart from the seeds of steps and epochs.
_SAMPLES = 0x73616D70


def image_grid(images: Tensor, labels: Tensor, classes: tuple[str, ...], columns: int = COLUMNS) -> bytes:
    """A PNG of the first images of each class, one row each; of more than 100 classes, 100 evenly spaced ones.

    Args:
        images: uint8 (N, C, H, W).
        labels: (N,) their classes; every class has at least one image.
        classes: their names.
        columns: images in a row.

    Example:
        >>> image_grid(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))[1:4]
        b'PNG'
    """
    from PIL import Image

    images, labels = images.cpu(), labels.cpu()
    sheet, _ = contact_sheet(DataSet("grid", images, labels, images, labels, classes), columns)
    return png_bytes(Image.fromarray(sheet.permute(1, 2, 0).numpy()))


def sample_grid(network: ImageGenerator, classes: tuple[str, ...], seed: int, columns: int = COLUMNS) -> bytes:
    """The grid of a generator's images, with latent vectors that follow from the seed."""
    labels = torch.arange(len(classes)).repeat(columns)
    return image_grid(make_images(network, labels, generator(seed, _SAMPLES)), labels, classes, columns)


PICTURES_FOLDER = "pictures"
"""The folder, within the run's, of grids of generated and real images."""

DISCRIMINATOR, GENERATOR = "discriminator", "generator"
_TURNS = {DISCRIMINATOR: 1, GENERATOR: 2}


class GenerationJob(Job):
    """Every batch is a step of the discriminator; every so many, as the method says, the generator has its step too.

    Args:
        config: of the run.
        data: the images.
        players: on their device.
        method: made for them.
        context: where it runs.
    """

    config: GANConfig

    def __init__(
        self, config: GANConfig, data: DataSet, players: Players, method: GenerativeMethod, context: RunContext
    ) -> None:
        self.config, self.processes, self.context, self.data = config, context.processes, context, data
        self.players, self.method = players.train(), method
        self.average = None if config.ema is None else AveragedNetwork(players.generator, config.ema)
        self.optimisers = {name: self._optimiser(getattr(players, name)) for name in _TURNS}
        self.finite = FiniteLoss(self.processes)
        self.sums: dict[str, Tensor] = {}
        training, self.evaluation = split_data(config, data)
        self.training = training
        self.source = RealBatches(
            images=expect_type(data.x_train, Tensor).to(self.processes.device),
            labels=data.y_train,
            indices=training,
            batch_size=config.batch_size,
            seed=config.seed,
            balanced=method.balanced,
            classes=len(config.classes),
            dtype=config.dtype,
            processes=self.processes,
        )
        self._comparison: GeneratorComparison | None = None
        self._last: GeneratorMetrics | None = None
        self._said: set[str] = set()

    def _optimiser(self, player: nn.Module) -> torch.optim.Optimizer:
        config, parameters = self.config, list(player.parameters())
        if config.optimiser == "rmsprop":
            return torch.optim.RMSprop(parameters, lr=config.lr, weight_decay=config.weight_decay)
        first, second = config.betas
        return torch.optim.Adam(parameters, lr=config.lr, betas=(first, second), weight_decay=config.weight_decay)

    @property
    def evaluated(self) -> ImageGenerator:
        """The generator that is evaluated and kept: the averaged one where there is one."""
        network = self.players.generator if self.average is None else self.average.module
        return expect_type(network, ImageGenerator)

    def batches(self, epoch: int, start: int = 0) -> Iterator[RealBatch]:
        """Real images with their labels."""
        return self.source.epoch(epoch, start)

    def step(self, batch: RealBatch, step: int) -> None:
        """A step of the discriminator, and perhaps one of the generator."""
        torch.manual_seed(mix(self.config.seed, step, self.processes.rank))
        self._turn(DISCRIMINATOR, batch, step)
        self.method.after_discriminator(self.players.discriminator)
        if (step + 1) % self.method.discriminator_steps == 0:
            self._turn(GENERATOR, None, step)
            if self.average is not None:
                self.average.update(self.players.generator)
        self.method.after_step(self.players)

    def _turn(self, name: str, real: RealBatch | None, step: int) -> None:
        """One optimiser step of one player; the other one stays as it is."""
        config, processes = self.config, self.processes
        drawn = draw_latents(self.players.generator, config.batch_size, (config.seed, step, _TURNS[name]), processes)
        for other in _TURNS:
            getattr(self.players, other).requires_grad_(other == name)
        with self._autocast():
            terms, recorded = self.method(self.players, PlayerInputs(drawn, real))
            loss = torch.stack([*terms.values()]).sum()
        self.finite.observe(loss, step + 1)
        samples = len(drawn.labels)
        # Processes average their gradients; their parts of a batch may differ by one image.
        (loss * (samples * processes.world / config.batch_size)).backward()
        player = getattr(self.players, name)
        processes.average_gradients(player.parameters())
        self.optimisers[name].step()
        self.optimisers[name].zero_grad()
        with torch.no_grad():
            sums = {f"{name}_{term}": value.double() * samples for term, value in terms.items()}
            sums |= {name: loss.double() * samples, f"{name}_samples": torch.full_like(loss, samples).double()}
            sums |= {record: values.double().sum() for record, values in recorded.items()}
            self.sums = {**self.sums, **{key: self.sums.get(key, 0) + total for key, total in sums.items()}}

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """The line of metrics for an epoch (counted from 1) that has come to its end."""
        self.check()
        self.method.after_epoch()
        metrics: dict[str, Any] = {"epoch": epoch, "step": step} | self.method.measures() | self._means()
        if self.config.evaluates(epoch):
            self._last = self._measure()
            metrics |= {f"{self.config.evaluated_on}/{name}": value for name, value in self._last.figures().items()}
        # What an untrained generator makes says nothing.
        if 2 * epoch >= self.config.epochs and self.processes.first:
            for problem, sentence in divergence_warnings(metrics, self.config.evaluated_on).items():
                if problem not in self._said:
                    warnings.warn(sentence, stacklevel=2)
                self._said.add(problem)
        return metrics

    def _means(self) -> dict[str, float]:
        """What was added up in an epoch, over the images of all processes: the generator may have had no turn."""
        for total in self.sums.values():
            self.processes.add_up(total)
        counts = {name: float(self.sums.pop(f"{name}_samples", 1.0)) for name in _TURNS}
        means = {
            f"train/{key}": float(total) / counts[GENERATOR if key.startswith(GENERATOR) else DISCRIMINATOR]
            for key, total in self.sums.items()
        }
        self.sums = {}
        return means

    def _measure(self) -> GeneratorMetrics:
        if self._comparison is None:
            images, labels, indices = self.evaluation
            real = expect_type(images[indices], Tensor)
            config = self.config
            self._comparison = GeneratorComparison.to(
                real, labels[indices], config.classes, self._judge(), self.processes
            )
        return self._comparison.measure(self.evaluated, self.config.seed)

    def _judge(self) -> Any:
        config = self.config
        if not config.judge:
            return train_judge(self.context.folder / JUDGE_FOLDER, self.data, config.held_out, self.processes)
        judge = load_judge(Path(config.judge), self.data)
        if judge.sha256 != config.judge_sha256:
            raise ValueError(f"{config.judge} holds another classifier than when the run was planned")
        return judge

    def check(self) -> None:
        """Raise NonFiniteLoss if there was one."""
        self.finite.check()

    def state(self) -> State:
        """Both players, the method, the averaged generator, both optimisers, and the sums of the epoch."""
        tensors = {name: getattr(self.players, name).state_dict() for name in _TURNS}
        tensors["method"] = self.method.state_dict()
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        rest = {
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "sums": {name: self.processes.collect(total) for name, total in self.sums.items()},
        }
        return State(tensors, rest)

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made; a ValueError if it is of other networks."""
        modules = {name: getattr(self.players, name) for name in _TURNS}
        modules |= {"method": self.method, "average": self.average}
        try:
            for group, tensors in state.tensors.items():
                modules[group].load_state_dict(tensors)
        except (RuntimeError, KeyError, AttributeError) as error:
            raise ValueError(f"the checkpoint does not fit this run: {error}") from error
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state.rest["optimisers"][name])
        self.sums = {name: self.processes.own(totals) for name, totals in state.rest["sums"].items()}
        self._last = None

    def weights(self) -> dict[str, Tensor]:
        """Those of the evaluated generator; the discriminator is no longer needed."""
        return self.evaluated.state_dict()

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Figures per class and the judge; grids of generated and of real images."""
        measured = self._last or self._measure()
        if self.processes.first:
            config, images = self.config, expect_type(self.data.x_train[self.training], Tensor)
            pictures = {
                "1-generated.png": sample_grid(self.evaluated, config.classes, config.seed),
                "2-real.png": image_grid(images, self.data.y_train[self.training], config.classes),
            }
            for name, content in pictures.items():
                save_picture(content, folder / PICTURES_FOLDER / name)
        self.processes.wait()
        judge = expect_type(self._comparison, GeneratorComparison).judge
        return {"per_class": measured.per_class(), "judge_sha256": judge.sha256}

    def _autocast(self) -> AbstractContextManager[object]:
        if self.config.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.processes.device.type, torch.bfloat16)
