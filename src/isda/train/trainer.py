"""Everything that changes while a run goes on, what one step does to it, and how it is saved and restored."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from isda import networks
from isda.data import DataSet
from isda.data.augment import Compose
from isda.semi import defaults_for
from isda.semi.by_name import ISDA_SUFFIX
from isda.train.batches import Batch, Batches, evaluation_batches
from isda.train.checkpoint import Checkpoint
from isda.train.config import Config
from isda.train.evaluation import Tally, evaluate
from isda.train.interruptions import FiniteLoss, NonFiniteLoss
from isda.train.normalisation import Whiten, normalised, normaliser_for
from isda.train.pipelines import evaluation_pipeline, training_pipeline
from isda.train.processes import Processes
from isda.train.semi_batches import SemiBatches, semi_batches
from isda.train.semi_method import SemiMethod, method_for
from isda.train.split import split_data

__all__ = ["Trainer", "learning_rate"]

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def learning_rate(config: Config, step: int) -> float:
    """The learning rate of step t = 0, 1, ... of T.

    Steps: lr * factor^(number of milestones passed). Cosine: lr (1 + cos(pi t / T)) / 2.
    """
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * step / config.total_steps)) / 2
    passed = sum(step >= milestone * config.steps_per_epoch for milestone in config.milestones)
    return config.lr * config.lr_factor**passed


class Trainer:
    """Network, method, optimiser and the sums of the current epoch.

    Args:
        config: of the run.
        data: the data set that it names.
        processes: who trains together.
        network: instead of the one that the configuration names.
        whiten: the whitening of the images, where the configuration has it.
    """

    def __init__(
        self,
        config: Config,
        data: DataSet,
        processes: Processes,
        network: networks.Network | None = None,
        whiten: Whiten | None = None,
    ) -> None:
        self.config, self.processes, device = config, processes, processes.device
        torch.manual_seed(config.seed)
        if network is None:
            network = networks.create(config.network, num_classes=len(config.classes), **config.network_options)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        network.to(device=device, dtype=self.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        self.network = network.train()
        average = None if config.ema is None else get_ema_multi_avg_fn(config.ema)
        self.average = None if average is None else AveragedModel(network, multi_avg_fn=average, use_buffers=True)
        self.method = method_for(config, network).train()
        self.forward = processes.wrap(torch.compile(network) if config.compile else network)  # type: ignore[arg-type]
        # A mean teacher is part of the method, and is not trained.
        parameters = [*network.parameters(), *(p for p in self.method.parameters() if p.requires_grad)]
        self.optimiser = torch.optim.SGD(
            parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.finite = FiniteLoss(processes)
        self.tally = Tally(len(config.classes), device)
        self.sums: dict[str, Tensor] = {}
        self.whiten = whiten
        self.batches = self._prepare_data(data)

    @property
    def evaluated(self) -> nn.Module:
        """The network that is judged: the averaged one where there is one, else the method's choice."""
        return self.method.evaluated(self.network) if self.average is None else self.average.module

    def step(self, batch: Batch, step: int) -> None:
        """One optimiser step on this process's part of a batch.

        Args:
            batch: images and labels.
            step: how many steps came before.
        """
        config = self.config
        torch.manual_seed(hash((config.seed, step, self.processes.rank)) % 2**63)
        batch = batch.to(self.dtype, config.channels_last)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        with torch.autocast(
            self.processes.device.type, AUTOCAST.get(config.precision), enabled=config.precision in AUTOCAST
        ):
            try:
                terms, logits = self.method(self.forward, batch)
            except ValueError as error:
                # Labels and shapes were checked long ago: the features have become infinite.
                raise NonFiniteLoss(f"step {step + 1} failed: {error}") from error
            loss = torch.stack([*terms.values()]).sum()
        self.finite.look(loss, step + 1)
        # Processes average their gradients; their parts of a batch may differ by one sample.
        share = len(batch.targets) * self.processes.world / config.targets_per_step
        self.scaler.scale(loss * share).backward()
        self.processes.average_gradients(self.method.parameters())
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.method.after_step(self.network)
        self._count(terms, loss, logits, batch.targets)

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """The line of metrics for an epoch (counted from 1) that has come to its end."""
        self.finite.check()
        self.method.after_epoch()
        metrics: dict[str, Any] = {"epoch": epoch, "step": step, "learning_rate": learning_rate(self.config, step - 1)}
        metrics |= self.method.measures()
        for total in (self.tally.sums, self.tally.bins, *self.sums.values()):
            self.processes.add_up(total)
        samples = float(self.tally.sums[0])
        metrics |= {f"train/{name}": float(total) / samples for name, total in self.sums.items()}
        metrics["train/error"] = self.tally.measures()["error"]
        self.tally = Tally(len(self.config.classes), self.processes.device)
        self.sums = {}
        if self.config.evaluates(epoch):
            metrics |= {f"test/{name}": value for name, value in self.evaluate().items()}
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Error, likelihood and calibration on the test images (or those held out)."""
        self.processes.share_buffers(self.evaluated)
        mine = self.evaluation.evaluation.tensor_split(self.processes.world)[self.processes.rank]
        batches = evaluation_batches(
            self.evaluation.images, self.evaluation.labels, mine, self.evaluation_pipeline, self.processes.device
        )
        classes = len(self.config.classes)
        return evaluate(self.evaluated, batches, classes, self.processes, self.config.channels_last)

    def checkpoint(self, step: int) -> Checkpoint:
        """All of it, after a step."""
        self.finite.check()
        tensors = {"model": self.network.state_dict(), "method": self.method.state_dict()}
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        rest = {
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "sums": {name: self.processes.collect(total) for name, total in self.sums.items()},
            "tally": [self.processes.collect(total) for total in (self.tally.sums, self.tally.bins)],
        }
        return Checkpoint(step, tensors, rest)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up where a checkpoint was made.

        Raises:
            ValueError: the checkpoint is of another network or method.
        """
        targets = {"model": self.network, "method": self.method, "average": self.average}
        try:
            for group, tensors in checkpoint.tensors.items():
                module = targets[group]
                assert module is not None
                module.load_state_dict(tensors)
        except (RuntimeError, KeyError, AssertionError) as error:
            raise ValueError(f"the checkpoint of step {checkpoint.step} does not fit this run: {error}") from error
        rest = checkpoint.rest
        self.optimiser.load_state_dict(rest["optimiser"])
        self.scaler.load_state_dict(rest["scaler"])
        self.sums = {name: self.processes.own(totals) for name, totals in rest["sums"].items()}
        self.tally.sums, self.tally.bins = (self.processes.own(totals) for totals in rest["tally"])

    def _prepare_data(self, data: DataSet) -> Batches | SemiBatches:
        config, device = self.config, self.processes.device
        self.evaluation = split_data(config, data)
        self.evaluation_pipeline = evaluation_pipeline(config.augment, config.mean, config.std)
        if isinstance(self.method, SemiMethod):
            return self._prepare_semi_supervised(data, self.method.objective.needs_unlabelled)
        images = data.x_train.to(device) if isinstance(data.x_train, Tensor) else data.x_train
        return Batches(
            images=images,
            labels=data.y_train.to(device),
            indices=self.evaluation.training,
            batch_size=config.batch_size,
            pipeline=training_pipeline(config.augment, config.mean, config.std, config.data),
            seed=config.seed,
            rank=self.processes.rank,
            world=self.processes.world,
            device=device,
        )

    def _prepare_semi_supervised(self, data: DataSet, needs_unlabelled: bool) -> SemiBatches:
        """Normalise all images once: whitening them anew in each evaluation would take longer than the network."""
        config, split, device = self.config, self.evaluation, self.processes.device
        normalise = normaliser_for(config, self.whiten)
        judged = split.images[split.evaluation]
        assert isinstance(judged, Tensor)
        self.evaluation = split._replace(
            images=normalised(judged, normalise, device),
            labels=split.labels[split.evaluation],
            evaluation=torch.arange(len(judged)),
        )
        self.evaluation_pipeline = Compose()
        settings = defaults_for(config.method.removesuffix(ISDA_SUFFIX), data.name)
        return semi_batches(config, data, split, settings, normalise, self.processes, needs_unlabelled=needs_unlabelled)

    def _count(self, terms: dict[str, Tensor], loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        self.tally.add(logits, targets)
        for name, term in {"loss": loss, **terms}.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach().double() * len(targets)
