"""Parse the command line, run a command, and print an error as one sentence."""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isda.lab.choices import did_you_mean
from isda.lab.cli.console import COMMAND_WORDS, prepare_console
from isda.lab.engine.options import current_folder_on_path
from isda.lab.extras import needed_by
from isda.lab.text import escape_control_characters

SECTIONS = {
    "Train and compare": {
        "train": "Train a network and write a run folder: configuration, metrics, checkpoints, result and weights.",
        "compare": "Train several methods with several seeds on one data set, and compare their errors.",
        "tune": "Choose settings of methods on held-out data, then train with the choice on all data and compare.",
        "report": "Compare finished and unfinished runs: a table in the terminal, and all details in one HTML page.",
    },
    "Use a model": {
        "predict": "Predict the class of image files.",
        "evaluate": "Measure a trained network: error, negative log-likelihood and calibration.",
        "export": "Write a trained classifier for ONNX, or under the names that torchvision, timm or MMDetection load.",
    },
    "Few labels": {
        "embed": "Write the features that a network computes for images to a file, for `isda classify`.",
        "classify": (
            "Train a classifier on a table or a file of embeddings, report its accuracy, and predict unlabelled rows."
        ),
    },
    "Look inside": {
        "directions": "Show in which directions the features of each class vary: one HTML page with training images.",
        "visualize": "Show images of ISDA's augmented features: the paper's reverse mapping by a trained generator.",
        "map": "Draw maps of the features of runs, and measure how well they separate the classes.",
        "tightness": "Measure how far the published and the tilted bound lie above the expected loss.",
    },
    "Other tasks": {
        "segment": "Semantic segmentation: train, compare, tune, evaluate, and label the pixels of image files.",
        "detect": "Detection and instance segmentation: train, compare, evaluate, and find objects in image files.",
        "generate": "Generators of images (GANs): train, evaluate and sample.",
        "transfer": "Measure how well features transfer to other data: linear probe or fine-tuning of finished runs.",
    },
    "The paper": {
        "reproduce": "Reproduce tables and figures of the paper, and print ours beside the paper's.",
    },
    "Tools": {
        "methods": "List the methods of `isda train` and the other tasks, with their options and defaults.",
        "networks": "List the networks with image size and parameters, or their costs beside the paper's.",
        "data": "List the data sets and where they are searched; with a name, load and describe that set.",
    },
}
"""Commands and their summaries by section of `isda --help`, stated here so that it does not import torch."""

GROUPS = {
    "segment": {
        "train": "Train a segmentation network and write a run folder.",
        "compare": "Train several methods with several seeds on one data set, and compare their mIoU.",
        "tune": "Choose settings of methods on the validation part, then train with the choice and compare.",
        "evaluate": "Measure a trained segmentation network: mIoU, per class too, at one scale or several.",
        "predict": "Label the pixels of image files with a trained network.",
    },
    "detect": {
        "train": "Train a detector on a backbone and write a run folder.",
        "compare": "Train a detector from several backbones with several seeds, and compare their box AP.",
        "evaluate": "Measure a trained detector: COCO's average precision of boxes and masks, per class too.",
        "predict": "Find objects in image files, and draw their boxes and masks.",
    },
    "generate": {
        "train": "Train a generator of images of each class and write a run folder.",
        "evaluate": "Measure a trained generator with a classifier: FID, KID, diversity, intended labels.",
        "sample": "Sample images from a trained generator: a PNG with a row per class, optionally an .npz of many.",
    },
}
"""Groups of commands: modules of `isda.lab.cli` with functions, and TASK_COMMANDS that are generated from a TASK."""

_MODULES = {
    "evaluate": "classifiers",
    "predict": "classifiers",
    "export": "classifiers",
    "embed": "embeddings",
    "classify": "embeddings",
    "networks": "info",
    "data": "info",
    "directions": "analysis",
    "visualize": "analysis",
    "map": "analysis",
    "tightness": "analysis",
    "reproduce": "reproduce_command",
}
"""Modules of `isda.lab.cli` that define commands of another name."""
_FUNCTIONS = {"map": "map_features"}
"""Functions that are not named like their command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: the words after ``isda``; those of the process if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    COMMAND_WORDS.set(tuple(words))
    with prepare_console():
        try:
            _run(words)
            sys.stdout.flush()
        except BrokenPipeError:
            pass  # the reader of the output, such as `head`, has closed it
        except KeyboardInterrupt:
            print("isda: interrupted", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            if "--debug" in given:
                traceback.print_exc()
            sys.exit(f"isda: {escape_control_characters(error_sentence(error))}")


def error_sentence(error: Exception) -> str:
    """An error as one sentence: its message, and its type where that is no message of ours or of the system.

    Example:
        >>> error_sentence(ValueError("lr must be positive")), error_sentence(KeyError("lr"))
        ('lr must be positive', "KeyError: 'lr'; --debug shows the traceback")
    """
    message = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | ModuleNotFoundError) and message:
        return message
    return f"{type(error).__name__}: {message}; --debug shows the traceback"


def _run(words: list[str]) -> None:
    first = words[0] if words else "--help"
    if first == "--version":
        from isda import __version__

        print(f"isda {__version__}")
    elif first in GROUPS:
        about = next(part[first] for part in SECTIONS.values() if first in part)
        _dispatch({first: GROUPS[first]}, f"isda {first}", about, words[1:])
    else:
        _dispatch(SECTIONS, "isda", "Implicit semantic data augmentation.", words)


def _dispatch(sections: Mapping[str, Mapping[str, str]], program: str, about: str, words: list[str]) -> None:
    """Run the command that the first word names, or list the commands."""
    commands = [name for part in sections.values() for name in part]
    first = words[0] if words else "--help"
    if first in commands:
        with needed_by(f"{program} {first}"), current_folder_on_path():
            import tyro

            function = command(f"{program} {first}".removeprefix("isda "), words[1:])
            tyro.cli(function, prog=f"{program} {first}", args=words[1:])
    elif first in ("-h", "--help", "help"):
        print(_help(sections, program, about))
    else:
        hint = did_you_mean(first, commands) or f"; there are {', '.join(commands)}"
        raise ValueError(f"no command {f'{program} {first}'.removeprefix('isda ')!r}{hint}")


def command(name: str, words: Sequence[str] = ()) -> Callable[..., Any]:
    """The function of a command, with the options of the task that its ``words`` select.

    Example:
        >>> command("segment evaluate").__name__
        'evaluate'
    """
    group, _, short_name = name.rpartition(" ")
    module = importlib.import_module(f"isda.lab.cli.{group or _MODULES.get(short_name, short_name)}")
    function: Callable[..., Any]
    if group and short_name in module.TASK_COMMANDS:
        from isda.lab.cli.tasks import group_task

        fixed = group_task(module, f"{GROUPS[group][short_name]}\n{module.TASK_COMMANDS[short_name]}", words)
        function = importlib.import_module(f"isda.lab.cli.{short_name}").command_for(words, fixed)
    elif hasattr(module, "command_for"):
        function = module.command_for(words)
    else:
        function = getattr(module, _FUNCTIONS.get(short_name, short_name))
    return function


def _help(sections: Mapping[str, Mapping[str, str]], program: str, about: str) -> str:
    width = min(120, max(60, shutil.get_terminal_size().columns))
    lines = [f"usage: {program} COMMAND [OPTIONS]", "", about]
    for title, part in sections.items():
        lines += ["", title] if len(sections) > 1 else [""]
        for name, summary in part.items():
            lines += textwrap.wrap(summary, width, initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
    lines += ["", f"`{program} COMMAND --help` explains a command; --debug with any shows the traceback of an error."]
    return "\n".join(lines)
