"""A task of a user's own."""

from dataclasses import dataclass

import torch
from torch import nn

from isda.lab.choices import check_choice
from isda.lab.engine import Curve, Figure, Method, Outcome, Recipe, Task, Trainer, TrainingConfig, TrainingSettings
from isda.lab.seeds import generator

LOSSES = {"squared-error": nn.MSELoss, "huber": nn.HuberLoss}
RECIPE = Recipe({"epochs": 20, "batch_size": 20, "lr": 0.05, "schedule": "cosine", "average_last": 2})


@dataclass(frozen=True, kw_only=True)
class SineSettings(TrainingSettings):
    """Every setting is an option of the command; its docstring is the help."""

    points: int = 200
    """Points to learn from."""

    def check(self):
        super().check()
        if not 0 < self.points < 1000:
            raise ValueError(f"points must be from 1 to 999, got {self.points}")


@dataclass(frozen=True, kw_only=True)
class SineConfig(SineSettings, TrainingConfig):
    """The settings with every value filled in, and facts of the data, if there are any."""


class Fit(Method):
    """One loss of predictions and targets."""

    def __init__(self, name):
        super().__init__()
        self.loss = LOSSES[name]()

    def forward(self, network, batch):
        predictions = network(batch[0])
        return Outcome({"fit": self.loss(predictions, batch[1])}, predictions)


class SineJob(Trainer):
    """Batches of points, and the error on others."""

    def __init__(self, config, data, processes):
        torch.manual_seed(config.seed)
        network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(processes.device)
        super().__init__(config, network, Fit(config.method), processes)
        self.x, self.y = (part.to(processes.device) for part in data)

    def batches(self, epoch, start=0):
        order = torch.randperm(self.config.points, generator=generator(self.config.seed, epoch))
        for indices in order.split(self.config.batch_size)[start : self.config.steps_per_epoch]:
            mine = indices.tensor_split(self.processes.world)[self.processes.rank].to(self.x.device)
            yield self.x[mine], self.y[mine]

    def samples(self, batch):
        return len(batch[0])

    def measured(self, outputs, batch):
        return {"squares": (outputs - batch[1]).square().double().sum()}

    @torch.no_grad()
    def evaluate(self):
        test = slice(self.config.points, None)
        return {"rmse": float((self.evaluated(self.x[test]) - self.y[test]).square().mean().sqrt())}


class Sine(Task):
    """Regression of a noisy sine."""

    name = "sine"
    settings_type = SineSettings
    config_type = SineConfig

    def methods(self):
        return tuple(LOSSES)

    def load(self, data, root=None):
        x = torch.rand(1000, 1, generator=generator(0)) * 6
        return x, x.sin() + 0.1 * torch.randn(1000, 1, generator=generator(1))

    def resolve(self, settings, data):
        values = settings.resolved(settings.shortened(RECIPE))
        values |= {
            "task": self.name,
            "data": "sine",
            "network": "mlp",
            "method": check_choice("method", settings.method or "squared-error", LOSSES),
            "steps_per_epoch": settings.points // values["batch_size"],
            "figures": (Figure(name="rmse", metric="test/rmse", title="test RMSE", digits=3),),
            "curves": (Curve(metric="train/loss", title="Training loss", logarithmic=True),),
            "baselines": ("squared-error",),
        }
        return SineConfig(**values)

    def start(self, config, data, context):
        return SineJob(config, data, context.processes)
