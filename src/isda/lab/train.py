"""Train image classifiers from Python: settings, data and training of the tasks of `isda train`.

>>> from isda.lab.train import Settings, load_data, resolve
>>> settings = Settings(data="digits", network="fast-cnn", method="isda", scale="smoke")
>>> config = resolve(settings, load_data(settings))
>>> config.epochs, config.method_options["lambda_0"]
(1, 0.5)

``train(config, data, folder)`` trains and returns the result; with ``SemiSettings`` it is semi-supervised.
"""

from __future__ import annotations

from pathlib import Path

from isda.lab.choices import expect_type as of_type
from isda.lab.data import DataSet
from isda.lab.engine import Hook, NonFiniteLoss, Processes, Saving, Stopped, Task, find_task, join_processes, train
from isda.lab.engine.task import task_for_method
from isda.lab.tasks.classification.settings import ClassificationConfig as Config
from isda.lab.tasks.classification.settings import ClassificationSettings as Settings
from isda.lab.tasks.classification.task import Classification
from isda.lab.tasks.classification.trained import TrainedClassifier as Trained
from isda.lab.tasks.classification.trained import load_classifier as load_trained
from isda.lab.tasks.semi_supervised.settings import SemiSettings
from isda.lab.tasks.semi_supervised.task import SemiSupervisedClassification

__all__ = [
    "IMAGE_TASKS",
    "Classification",
    "Config",
    "Hook",
    "NonFiniteLoss",
    "Processes",
    "Saving",
    "SemiSettings",
    "SemiSupervisedClassification",
    "Settings",
    "Stopped",
    "Trained",
    "image_task",
    "join_processes",
    "load_data",
    "load_trained",
    "resolve",
    "train",
]

IMAGE_TASKS = ("classification", "semi-supervised")
"""The tasks of `isda train`; the method decides which."""


def image_task(method: str | None) -> Task:
    """The task of a method string."""
    return task_for_method(method or "isda", [find_task(name) for name in IMAGE_TASKS])


def load_data(settings: Settings, data_root: Path | None = None) -> DataSet:
    """Load the data set of the settings."""
    return Classification().load(settings.data, data_root)


def resolve(settings: Settings, data: DataSet) -> Config:
    """The configuration with all defaults filled in; raises a ValueError if a setting is invalid."""
    return of_type(image_task(settings.method).resolve(settings, data), Config)
