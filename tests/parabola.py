"""A task whose runs take milliseconds, for the tests of searches: a parabola in x, one figure held out, another tested.

Held out, a run measures (x - 3)^2 + (z - 2)^2 + y^2 (and 1e-3 times its seed); the test set would say (x - 50)^2. x
beyond 8 does not resolve, with z = 40 and more the loss is not finite. "worse" is the same plus 1; "plain" has no
options. Every run that begins is noted in a file of the folder that PARABOLA names.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isda.lab.choices import check_choice
from isda.lab.engine import Figure, Job, NonFiniteLoss, RunConfig, RunSettings, State, Task
from isda.lab.engine.comparison import Planner
from isda.lab.engine.executors.runs import Execution, PlannedRun, Watcher, execute
from isda.lab.engine.options import parse_options, split_method
from isda.lab.engine.search import SearchOptions, SearchRecord, make_candidates, run_search
from isda.lab.engine.task import HeldOut

BEGUN = "begun.txt"
LIMIT, DIVERGES = 8, 40


@dataclass(frozen=True, kw_only=True)
class ParabolaSettings(RunSettings):
    judged_by: str | None = None
    y: float | None = None
    lr: float | None = None  # decides nothing
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class ParabolaConfig(RunConfig):
    y: float


@dataclass(frozen=True, kw_only=True)
class Options:
    x: float = 1.0
    z: int = 0
    word: str = "plain"


class ParabolaJob(Job):
    def __init__(self, config: Any, processes: Any, folder: Path) -> None:
        self.config, self.processes, self.total = config, processes, torch.zeros(1)
        with Path(os.environ.get("PARABOLA", "."), BEGUN).open("a") as file:
            file.write(f"{folder.parent.name}/{folder.name} {config.evaluated_on}\n")

    def batches(self, epoch, start):
        yield from range(start, self.config.steps_per_epoch)

    def step(self, batch, step):
        time.sleep(0.001)
        self.total += 1
        if self.config.method_options.get("z", 0) >= DIVERGES:
            raise NonFiniteLoss(f"the loss became infinite or not a number in step {step}")

    def finish_epoch(self, epoch, step):
        options, config = self.config.method_options, self.config
        best = 3 if config.evaluated_on == "held-out" else 50
        figure = (options.get("x", 0) - best) ** 2 + (options.get("z", 0) - 2) ** 2 + config.y**2
        figure += (config.method == "worse") + (options.get("word") == "bad") + 1e-3 * config.seed
        measured = {"figure": figure, "other": options.get("x", 0) + options.get("z", 0)}
        return {"epoch": epoch, "step": step} | {
            f"{config.evaluated_on}/{key}": value for key, value in measured.items()
        }

    def state(self):
        return State({"total": {"total": self.total.clone()}}, {})

    def restore(self, state):
        self.total = state.tensors["total"]["total"]

    def weights(self):
        return {"total": self.total}


class Parabola(Task):
    name = "parabola"
    settings_type = ParabolaSettings
    config_type = ParabolaConfig
    class_options = ("covariance",)

    def methods(self):
        return ("parabola", "worse", "plain")

    def options(self, method):
        return {} if method.startswith("plain") else {"x": float, "z": int, "word": str}

    def grid(self, settings, data):
        return {} if settings.method.startswith("plain") else {"x": (1.0, 2.0, 4.0)}

    def held_out(self, settings, data):
        return HeldOut(replace(settings, judged_by="held-out"), replace(settings, judged_by="test"), "a tenth")

    def load(self, data, root=None):
        return None

    def resolve(self, settings, data):
        name, words = split_method(settings.method)
        check_choice("method", name, self.methods())
        options = parse_options(name, words, *([] if name == "plain" else [Options]))
        if not 0 <= options.get("x", 0) <= LIMIT:
            raise ValueError(f"x must lie in 0..{LIMIT}, got {options['x']}")
        on = settings.judged_by or "test"
        figures = (
            Figure(name="figure", metric=f"{on}/figure", title=f"{on} figure", digits=3),
            Figure(name="other", metric=f"{on}/other", title=f"{on} other", digits=3, lower_is_better=False),
        )
        return ParabolaConfig(
            task="parabola",
            data="points",
            network="none",
            method=name,
            method_options=options,
            seed=settings.seed or 0,
            scale="custom",
            epochs=1,
            steps_per_epoch=settings.steps or 2,
            evaluated_on=on,
            figures=figures,
            baselines=("plain",),
            settings=settings.given(),
            y=settings.y or 0.0,
        )

    def start(self, config, data, context):
        return ParabolaJob(config, context.processes, context.folder)


class Here(Executor):
    """Makes runs in this process: no time goes into starting others."""

    def submit(self, function, /, *arguments, **options):
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


HERE = Execution(Here(), 1, execute)


def parabolas(folder: Path, count: int = 3, steps: int | None = None) -> list[PlannedRun]:
    """Runs with several seeds."""
    configs = [
        Parabola().resolve(ParabolaSettings(method="parabola", seed=seed, steps=steps), None) for seed in range(count)
    ]
    return [
        PlannedRun(task=Parabola, config=config, folder=folder / f"seed-{config.seed}", data=None, device="cpu")
        for config in configs
    ]


def candidates(methods=("parabola",), words=(), settings=None, **how):
    planner = Planner(task_of=lambda method: Parabola(), device="cpu")
    return make_candidates(settings or ParabolaSettings(), methods, words, SearchOptions(**how), planner)


def tuned(folder: Path, methods=("parabola",), words=(), settings=None, **how) -> SearchRecord:
    """A search of parabolas below a folder, which also gets the list of runs."""
    os.environ["PARABOLA"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = candidates(methods, words, settings, **how)
    return run_search(found, folder, Watcher(), HERE)


def begun(folder: Path) -> list[str]:
    """The runs that were begun or resumed, in order."""
    return (folder / BEGUN).read_text().splitlines() if (folder / BEGUN).exists() else []
