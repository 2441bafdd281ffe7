"""The small generators on scikit-learn's digits that several tests share: a few steps, well under a second.

As a module: settings, configurations and jobs. They are judged by the classifier of a run that the tests name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isda.lab.engine import RunContext
from isda.lab.tasks.gan.job import GenerationJob
from isda.lab.tasks.gan.settings import GANConfig, GANSettings
from isda.lab.tasks.gan.task import Generation
from small_runs import ALONE, digits

METHODS = ("wgan", "wgan:penalty=10", "cgan", "acgan", "infogan")
SMALL: dict[str, Any] = {"width": 0.1, "labels": 100, "batch_size": 20, "epochs": 2}
SMALL_WORDS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def small_config(judge: Path | None = None, **changes: Any) -> GANConfig:
    """The configuration of the small run, with other settings where they are given."""
    named = {} if judge is None else {"judge": str(judge)}
    return Generation().resolve(GANSettings(**(SMALL | named | changes)), digits())


def small_job(judge: Path | None = None, folder: Path = Path("not-there"), **changes: Any) -> GenerationJob:
    """The small run, before its first step."""
    job = Generation().start(small_config(judge, **changes), digits(), RunContext(ALONE, folder))
    assert isinstance(job, GenerationJob)
    return job
