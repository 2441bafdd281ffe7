"""The command ``isda methods``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

from isda.lab.cli.runtime_options import JsonFile

TRAIN_COMMANDS = {
    "classification": "isda train",
    "semi-supervised": "isda train --labels N",
    "segmentation": "isda segment train",
    "detection": "isda detect train",
    "generation": "isda generate train",
}
"""The tasks whose methods are listed, and the commands that train with them."""
WITH_ISDA = "+isda"
SHOWN_OPTIONS = 3
"""Options of a method that the list shows; `isda methods NAME` shows all."""
FIRST_OPTIONS = ("lambda_0", "covariance", "bound")
"""Shown before the others, after those that `isda tune` chooses."""


@dataclass(frozen=True)
class MethodDescription:
    """A method, its options and their defaults."""

    name: str
    task: str
    summary: str
    options: Mapping[str, Any]
    """Defaults by name."""
    texts: Mapping[str, str]
    """Explanations of options, where there are any."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        strengths = default_strengths(self.task) if "lambda_0" in self.options else {}
        return {
            "name": self.name,
            "task": self.task,
            "command": TRAIN_COMMANDS[self.task],
            "summary": self.summary,
            "options": dict(self.options),
            "lambda_0": strengths,
        }


def methods(name: str | None = None, /, *, json: JsonFile = None) -> None:
    """List the methods of `isda train` and the other tasks, with their options and defaults.

    ``isda methods focal+isda`` explains the options of one method.

    Args:
        name: a method, to list all of its options.
        json: a file for the result as JSON.
    """
    from isda.lab.choices import check_choice
    from isda.lab.cli.output import show, table_console

    described = list(describe_methods())
    if name is not None:
        check_choice("method", name, list(dict.fromkeys(method.name for method in described)))
        described = [method for method in described if method.name == name]
    records = [method.record() for method in described]

    def tables() -> None:
        console = table_console()
        for text in _detail(described) if name is not None else _list(described):
            console.print(text)

    show(records, json, tables)


def describe_methods() -> Iterator[MethodDescription]:
    """All methods, those of a task together."""
    from isda.lab.engine.task import find_task

    for task in TRAIN_COMMANDS:
        for name, summary in find_task(task).settings_type.method_summaries.items():
            declared, resolved, tuned = _options(task, name)
            defaults = {f.name: None if f.default is MISSING else f.default for kind in declared for f in fields(kind)}
            texts = {key: text for kind in declared for key, text in _texts(kind).items()}
            options = defaults | resolved
            first = [key for key in (*tuned, *FIRST_OPTIONS) if key in options]
            yield MethodDescription(name, task, summary, {key: options[key] for key in (*first, *options)}, texts)


def default_strengths(task: str) -> dict[str, float]:
    """The default of lambda_0 by recipe, where a method has it."""
    from isda.lab.tasks.classification.settings import FINE_TUNING_RECIPE, imagenet_strength, recipe_for
    from isda.lab.tasks.segmentation.settings import recipe_for as segmentation_recipe

    if task == "segmentation":
        return {"segmentation": segmentation_recipe(1).method_defaults["isda"]["lambda_0"]}
    return {
        "small images": recipe_for("resnet-32").method_defaults["isda"]["lambda_0"],
        "fine-tuning": FINE_TUNING_RECIPE.method_defaults["isda"]["lambda_0"],
        "ImageNet, ResNets and ResNeXts": imagenet_strength("resnet-50"),
        "ImageNet, ResNet-101": imagenet_strength("resnet-101"),
        "ImageNet, DenseNets": imagenet_strength("densenet-121"),
    }


def _options(task: str, name: str) -> tuple[list[type], dict[str, Any], list[str]]:
    """The dataclasses that declare the options of a method, defaults that are not theirs, and what is tuned.

    Of classification they are those for small images, of semi-supervised methods those for CIFAR-10 with 4,000 labels.
    """
    from isda.lab.engine.settings import Recipe
    from isda.lab.tasks.classification.settings import recipe_for

    if task == "semi-supervised":
        from isda.lab.methods.semi import defaults_for
        from isda.lab.tasks.semi_supervised.settings import declared_options, resolve_options, tuning_grid

        published, recipe = defaults_for(name.removesuffix(WITH_ISDA), "cifar10"), recipe_for("cnn-13")
        options = resolve_options(name, published, 4000, 50_000, recipe)
        return declared_options(name), options, list(tuning_grid(name, options, recipe))
    if task == "classification":
        from isda.lab.methods.registry import METHODS as known

        method: Any = known[name]
        recipe = recipe_for("resnet-32")
    elif task == "segmentation":
        from isda.lab.tasks.segmentation.methods import METHODS as pixel_methods
        from isda.lab.tasks.segmentation.settings import recipe_for as segmentation_recipe

        method, recipe = pixel_methods[name], segmentation_recipe(1)
    elif task == "detection":
        from isda.lab.tasks.detection.task import METHODS as detection_methods

        method, recipe = detection_methods[name], Recipe({})
    else:
        from isda.lab.tasks.gan.methods import METHODS as generative_methods

        method, recipe = generative_methods[name], Recipe({})
    return [method.Options], method.resolve("", recipe), list(method.grid_for(recipe))


def _texts(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and its bases, from their source."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):  # a class without a source
            continue
        for statement, following in pairwise(getattr(definition, "body", [])):
            target = getattr(getattr(statement, "target", None), "id", None)
            value = getattr(getattr(following, "value", None), "value", None)
            if isinstance(target, str) and isinstance(value, str):
                texts[target] = " ".join(value.split())
    return texts


def _list(described: list[MethodDescription]) -> Iterator[Any]:
    """A table for each task; a method and its combination with ISDA share a row."""
    from isda.lab.cli.output import plain_table

    by_task = {task: [method for method in described if method.task == task] for task in TRAIN_COMMANDS}
    for task, members in by_task.items():
        names = {method.name for method in members}
        rows = [
            [method.name, WITH_ISDA if method.name + WITH_ISDA in names else "", method.summary, _short(method)]
            for method in members
            if not method.name.endswith(WITH_ISDA)
        ]
        heads = ["method", "also", "what it is", "options and their defaults"]
        table = plain_table(f"{TRAIN_COMMANDS[task]} --method NAME", heads, rows)
        for column in table.columns:
            column.justify = "left"
        yield table
    strengths = ", ".join(f"{value:g} ({where})" for where, value in default_strengths("classification").items())
    yield f"lambda_0 of ISDA by default: {strengths}."
    yield "Options follow a colon: --method isda:lambda_0=1,covariance=diagonal. `isda methods NAME` explains them."


def _short(method: MethodDescription) -> str:
    values = [f"{name}={_value(value)}" for name, value in method.options.items() if value is not None]
    return ", ".join(values[:SHOWN_OPTIONS]) + (", ..." if len(method.options) > SHOWN_OPTIONS else "")


def _detail(described: list[MethodDescription]) -> Iterator[Any]:
    """The options of a method, for each task that has it."""
    from isda.lab.cli.output import plain_table

    for method in described:
        rows = [[name, _value(value), method.texts.get(name, "")] for name, value in method.options.items()]
        table = plain_table(
            f"{TRAIN_COMMANDS[method.task]} --method {method.name}: {method.summary}", ["option", "default", ""], rows
        )
        table.columns[1].justify = table.columns[2].justify = "left"
        yield table


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
