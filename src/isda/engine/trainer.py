"""The job of most tasks: one network, one method and one optimiser, and what a step does to them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isda.checks import NonFiniteFeatures
from isda.engine.averaging import AveragedNetwork
from isda.engine.folder.checkpoint import State
from isda.engine.folder.config import RunConfig
from isda.engine.interruptions import FiniteLoss, NonFiniteLoss
from isda.engine.method import Method, Outcome
from isda.engine.optimisers import RATE, make_optimiser
from isda.engine.processes import Processes
from isda.engine.recipe import learning_rate
from isda.engine.task import Job
from isda.errors import of_type
from isda.seeds import mix

__all__ = ["Trainer", "TrainingConfig"]

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(RunConfig):
    """How a network is trained; see `isda.engine.Recipe` and `isda.engine.RunSettings`."""

    batch_size: int
    lr: float
    schedule: str
    milestones: tuple[int, ...]
    lr_factor: float
    momentum: float
    weight_decay: float
    optimiser: str = "sgd"
    warm_up_steps: int = 0
    layer_decay: float = 1.0
    precision: str = "float32"
    ema: float | None = None
    channels_last: bool = False
    compile: bool = False

    @property
    def samples_per_step(self) -> int:
        """Samples that the loss of a step is a mean over, in all processes together."""
        return self.batch_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return torch.float64 if self.precision == "float64" else torch.float32


class Trainer(Job):
    """Network, method, optimiser and the sums of the current epoch. A task adds batches and what is measured.

    Args:
        config: of the run.
        network: not yet wrapped or compiled; is moved to the device.
        method: makes the loss; made for the network on its device.
        processes: who trains together.
    """

    config: TrainingConfig

    def __init__(self, config: TrainingConfig, network: nn.Module, method: Method, processes: Processes) -> None:
        self.config, self.processes = config, processes
        self.network, self.method = network.train(), method.train()
        self.average = None if config.ema is None else AveragedNetwork(network, config.ema)
        self.forward = processes.wrap(torch.compile(network) if config.compile else network)  # type: ignore[arg-type]
        # A mean teacher is part of the method, and is not trained; nor is a backbone that is frozen.
        parameters = [p for p in (*network.parameters(), *method.parameters()) if p.requires_grad]
        self.optimiser = self.make_optimiser(parameters)
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=config.precision == "float16")
        self.finite = FiniteLoss(processes)
        self.sums: dict[str, Tensor] = {}

    # -- what a task brings ------------------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """This process's part of each batch of an epoch, from step ``start`` on."""

    @abstractmethod
    def samples(self, batch: Any) -> float:
        """How many samples the loss of this process's batch is a mean over."""

    @abstractmethod
    def measured(self, outputs: Any, batch: Any) -> dict[str, Tensor]:
        """Scalars to be averaged over the training samples of an epoch: their sums over this batch."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """What is measured on the images that the run is judged by; called in all processes."""

    def make_optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The one that the configuration names, unless a task says otherwise."""
        return make_optimiser(self.config, parameters, self.rates())

    def rates(self) -> Mapping[nn.Parameter, float]:
        """The share of the learning rate that a parameter has, where that is not the whole."""
        return {}

    def learning_rate(self, step: int) -> float:
        """That of a step, by the recipe's schedule, unless a task says otherwise."""
        return learning_rate(self.config, step)

    # -- what it does with it ----------------------------------------------------------------------------------------

    @property
    def evaluated(self) -> nn.Module:
        """The network that is judged: the averaged one where there is one, else the method's choice."""
        return self.method.evaluated(self.network) if self.average is None else self.average.module

    def step(self, batch: Any, step: int) -> None:
        """One optimiser step on this process's part of a batch; ``step`` is how many came before."""
        config = self.config
        torch.manual_seed(mix(config.seed, step, self.processes.rank))
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(step) * group.get(RATE, 1.0)
        batch = self.method.prepare(batch)
        parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        loss, (terms, outputs) = self.method.differentiate(lambda: self._pass(batch, step), self.network, parameters)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(self.network)
        self.method.after_step(self.network)
        with torch.no_grad():
            samples = self.samples(batch)
            sums = {name: term.double() * samples for name, term in {"loss": loss, **terms}.items()}
            sums |= self.measured(outputs, batch) | {"samples": torch.full_like(sums["loss"], samples)}
            self.sums = {name: self.sums[name] + total if name in self.sums else total for name, total in sums.items()}

    def _pass(self, batch: Any, step: int) -> tuple[Tensor, Outcome]:
        """Forward and back: the loss, its terms and the outputs; the gradients are those of all processes together."""
        with self._autocast():
            try:
                outcome = self.method(self.forward, batch)
            except NonFiniteFeatures as error:
                # Features follow a loss that nobody has looked at yet.
                raise self.finite.own() or NonFiniteLoss(f"step {step + 1} failed: {error}") from error
            loss = torch.stack([*outcome.terms.values()]).sum()
        self.finite.look(loss, step + 1)
        # Processes average their gradients; their parts of a batch may differ by one sample.
        share = self.samples(batch) * self.processes.world / self.config.samples_per_step
        self.scaler.scale(loss * share).backward()
        self.processes.average_gradients(self.method.parameters())
        return loss, outcome

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """The line of metrics for an epoch (counted from 1) that has come to its end."""
        self.check()
        self.method.after_epoch()
        metrics: dict[str, Any] = {"epoch": epoch, "step": step, "learning_rate": self.learning_rate(step - 1)}
        metrics |= self.method.measures()
        for total in self.sums.values():
            self.processes.add_up(total)
        samples = float(self.sums.pop("samples"))
        metrics |= {f"train/{name}": float(total) / samples for name, total in self.sums.items()}
        self.sums = {}
        if self.config.evaluates(epoch):
            self.processes.share_buffers(self.evaluated)
            metrics |= {f"{self.config.evaluated_on}/{name}": value for name, value in self.evaluate().items()}
        return metrics

    def check(self) -> None:
        """Raise NonFiniteLoss if there was one."""
        self.finite.check()

    def state(self) -> State:
        """The network's, the method's and the averaged network's tensors, and the optimiser's state."""
        tensors = {"model": self.network.state_dict(), "method": self.method.state_dict()}
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        rest = {
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "sums": {name: self.processes.collect(total) for name, total in self.sums.items()},
        }
        return State(tensors, rest)

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made; a ValueError if it is of another network or method."""
        modules = {"model": self.network, "method": self.method, "average": self.average}
        try:
            for group, tensors in state.tensors.items():
                of_type(modules[group], nn.Module).load_state_dict(tensors)
        except (RuntimeError, KeyError, TypeError) as error:
            raise ValueError(f"the checkpoint does not fit this run: {error}") from error
        self.optimiser.load_state_dict(state.rest["optimiser"])
        self.scaler.load_state_dict(state.rest["scaler"])
        self.sums = {name: self.processes.own(totals) for name, totals in state.rest["sums"].items()}

    def weights(self) -> dict[str, Tensor]:
        """Those of the network that is judged."""
        return self.evaluated.state_dict()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.processes.device.type, dtype)
