"""`Trainer`: one network, one method and one optimiser, with mixed precision and weight averaging."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from isda._checks import NonFiniteError
from isda.lab.choices import expect_type
from isda.lab.engine.checkpoint import State
from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.method import Method, Outcome
from isda.lab.engine.processes import FiniteLoss, NonFiniteLoss, Processes
from isda.lab.engine.settings import learning_rate
from isda.lab.engine.task import Job
from isda.lab.seeds import mix

RATE_SHARE = "rate"
"""What a group of parameters calls its share of the learning rate."""


class _Optimised(Protocol):
    """What of a configuration decides the optimiser."""

    @property
    def optimiser(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...


_Groups = list[dict[str, Any]]


def _sgd(groups: _Groups, config: _Optimised) -> torch.optim.Optimizer:
    """Momentum, Nesterov's or plain, and an L2 penalty on all parameters."""
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
    )


def _adamw(groups: _Groups, config: _Optimised) -> torch.optim.Optimizer:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), of matrices and kernels alone: no biases, no scales."""
    split = [
        {**group, "params": params, "weight_decay": decay}
        for group in groups
        for params, decay in (
            ([p for p in group["params"] if p.ndim > 1], config.weight_decay),
            ([p for p in group["params"] if p.ndim <= 1], 0.0),
        )
        if params
    ]
    return torch.optim.AdamW(split, lr=config.lr)


OPTIMISERS: dict[str, Callable[[_Groups, _Optimised], torch.optim.Optimizer]] = {"sgd": _sgd, "adamw": _adamw}


def make_optimiser(
    config: _Optimised, parameters: Sequence[nn.Parameter], rates: Mapping[nn.Parameter, float]
) -> torch.optim.Optimizer:
    """The optimiser that a configuration names.

    Args:
        config: says which, at what rate.
        parameters: to train.
        rates: the share of the learning rate that a parameter has; the whole where it is not named. Parameters with one
            share are one group, which has it under RATE_SHARE; the learning rate of a step is multiplied by it.
    """
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_rate.setdefault(rates.get(parameter, 1.0), []).append(parameter)
    groups: _Groups = [{"params": params, RATE_SHARE: rate} for rate, params in by_rate.items()]
    return OPTIMISERS[config.optimiser](groups, config)


class AveragedNetwork(nn.Module):
    """theta' <- d theta' + (1 - d) theta after each step, for weights and running statistics; theta' = theta at first.

    torch.optim.swa_utils.AveragedModel asks the device in every step how many steps there were; here the host knows.

    Args:
        network: to average.
        decay: d.

    Example:
        >>> network = nn.Linear(1, 1, bias=False)
        >>> average = AveragedNetwork(network, decay=0.75)
        >>> for value in (4.0, 8.0):
        ...     _ = nn.init.constant_(network.weight, value)
        ...     average.update(network)
        >>> average.module.weight.item()
        5.0
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay, self.steps = decay, 0
        self.module = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network after a step."""
        pairs = list(zip(_tensors(self.module), _tensors(network), strict=True))
        smooth = [(mean, value) for mean, value in pairs if mean.is_floating_point()] if self.steps else []
        if smooth:
            means, values = map(list, zip(*smooth, strict=True))
            torch._foreach_lerp_(means, values, 1 - self.decay)
        for mean, value in pairs:
            if not self.steps or not mean.is_floating_point():
                mean.copy_(value)
        self.steps += 1

    def get_extra_state(self) -> Tensor:
        """The number of steps, for the state_dict."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Any) -> None:
        """Take the number of steps from a state_dict."""
        self.steps = int(state)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


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
        self.finite = FiniteLoss(processes, method.divergence_hint)
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
        """Metrics on the images that the run is evaluated on; called in all processes."""

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
        """The network that is evaluated: the averaged one if there is one, else the method's choice."""
        return self.method.evaluated(self.network) if self.average is None else self.average.module

    def step(self, batch: Any, step: int) -> None:
        """One step on this process's part of a batch; ``step`` is how many came before."""
        config = self.config
        torch.manual_seed(mix(config.seed, step, self.processes.rank))
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(step) * group.get(RATE_SHARE, 1.0)
        batch = self.method.prepare(batch)
        loss, (terms, outputs) = self._pass(batch, step)
        if (step + 1) % config.accumulate == 0 or step + 1 == config.total_steps:
            self._take_step()
        with torch.no_grad():
            samples = self.samples(batch)
            sums = {name: term.double() * samples for name, term in {"loss": loss, **terms}.items()}
            sums |= self.measured(outputs, batch) | {"samples": torch.full_like(sums["loss"], samples)}
            self.sums = {name: self.sums[name] + total if name in self.sums else total for name, total in sums.items()}

    def _take_step(self) -> None:
        """The optimiser's step with the gradients that have been added up."""
        if self.config.clip is not None:
            self.scaler.unscale_(self.optimiser)
            parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.config.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(self.network)
        self.method.after_step(self.network)

    def _pass(self, batch: Any, step: int) -> tuple[Tensor, Outcome]:
        """Forward and back: the loss, its terms and the outputs; the gradients are those of all processes together."""
        with self._autocast():
            try:
                outcome = self.method(self.forward, batch)
            except NonFiniteError as error:
                # The features follow from losses that have not been checked yet.
                raise self.finite.own() or NonFiniteLoss(f"step {step + 1} failed: {error}") from error
            loss = torch.stack([*outcome.terms.values()]).sum()
        self.finite.observe(loss, step + 1)
        # Processes average their gradients; their parts of a batch may differ by one sample.
        share = self.samples(batch) * self.processes.world / self.config.samples_per_step
        self.scaler.scale(loss * share / self.config.accumulate).backward()
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
                expect_type(modules[group], nn.Module).load_state_dict(tensors)
        except (RuntimeError, KeyError, TypeError) as error:
            raise ValueError(f"the checkpoint does not fit this run: {error}") from error
        self.optimiser.load_state_dict(state.rest["optimiser"])
        self.scaler.load_state_dict(state.rest["scaler"])
        self.sums = {name: self.processes.own(totals) for name, totals in state.rest["sums"].items()}

    def weights(self) -> dict[str, Tensor]:
        """Those of the network that is evaluated."""
        return self.evaluated.state_dict()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.processes.device.type, dtype)
