"""Parse the command line, run a command, and map errors to exit statuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from isda._utils.choices import did_you_mean
from isda._utils.errors import DEBUG_VARIABLE, debugging, describe_error, is_package_error, traceback_text
from isda._utils.extras import install_command, needed_by
from isda._utils.text import escape_control_characters
from isda.cli.console import COMMAND_WORDS, prepare_console
from isda.engine.options import current_folder_on_path

COMMANDS = {
    "train": "Train a network and write a run folder: configuration, metrics, checkpoints, result and weights.",
    "compare": "Train several methods with several seeds on one data set, and compare their errors.",
    "tune": "Choose settings of methods on held-out data, then train with the choice on all data and compare.",
    "study": "Train variants of a method and show the contribution of each part: Figures 10, 11 and Table 8.",
    "reproduce": "Reproduce tables and figures of the paper, and print ours beside the paper's.",
    "transfer": "Measure how well the features of finished runs transfer to other data: linear probe or fine-tuning.",
    "report": "Compare finished and unfinished runs: a table in the terminal, and all details in one HTML page.",
    "evaluate": "Measure a trained network: error, negative log-likelihood and calibration.",
    "predict": "Predict the class of image files.",
    "embed": "Write the features that a network computes for the images of a data set to a file, for `isda classify`.",
    "classify": "Train a classifier on rows of features, report its accuracy, and predict the rows without a label.",
    "networks": "Print the parameters, multiply-adds and ISDA's overhead of every network beside the paper's.",
    "data": "List the data sets and the folders that are searched for them; with a name, load and describe that set.",
    "directions": "Show the directions in which the features of each class vary in one HTML page with training images.",
    "visualize": "Show images of ISDA's augmented features: the paper's reverse mapping through a trained generator.",
    "explore": "Serve a page to move features along the directions of classes and see the nearest images.",
    "map": "Draw maps of the features of runs side by side, with measures of how well they separate the classes.",
    "tightness": "Measure how far the published and the tilted bound lie above the expected loss.",
    "segment": "Semantic segmentation: train, compare, tune, evaluate and predict with a class for every pixel.",
    "detect": "Detection and instance segmentation: train, compare, evaluate and predict boxes and masks of objects.",
    "generate": "Generators of images: train, evaluate and sample GANs, whose images can be part of every batch.",
    "export": "Write a trained classifier under the names that torchvision, timm or MMDetection load.",
    "run": "Execute one run of a plan that --on slurm has written, as each element of its array job does.",
    "completion": "Print a shell script that completes commands and options.",
}
"""Commands and their summaries, stated here so that `isda --help` does not import torch."""
_MODULES = {
    "evaluate": "classifiers",
    "predict": "classifiers",
    "export": "classifiers",
    "embed": "embeddings",
    "classify": "embeddings",
    "networks": "info",
    "data": "info",
    "completion": "info",
    "directions": "analysis",
    "visualize": "analysis",
    "explore": "analysis",
    "map": "analysis",
    "tightness": "analysis",
    "run": "executors",
}
"""Modules of `isda.cli` that define commands of another name."""
_FUNCTIONS = {"map": "map_features"}
"""Functions that are not named like their command."""

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
"""Groups of commands: modules of `isda.cli` with functions, and with TASK_COMMANDS that are generated from a TASK."""


def command(name: str, words: Sequence[str] = ()) -> Callable[..., None]:
    """The function of a command, with the options of the task that ``words`` select.

    Args:
        name: one of COMMANDS that is not a group, or GROUP.NAME.
        words: that follow it.
    """
    group, _, short_name = name.rpartition(".")
    module = import_module(f"isda.cli.{group or _MODULES.get(short_name, short_name)}")
    if group and short_name in module.TASK_COMMANDS:
        from isda.cli.tasks import group_task

        fixed = group_task(module, f"{GROUPS[group][short_name]}\n{module.TASK_COMMANDS[short_name]}")
        function = import_module(f"isda.cli.{short_name}").command_for(words, fixed)
    elif hasattr(module, "command_for"):
        function = module.command_for(words)
    else:
        function = getattr(module, _FUNCTIONS.get(short_name, short_name))
    return cast(Callable[..., None], function)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: the words after ``isda``; those of the process if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    COMMAND_WORDS.set(tuple(words))
    with prepare_console(), _tracebacks("--debug" in given):
        try:
            _run(words)
            sys.stdout.flush()
        except BrokenPipeError:
            pass  # the reader of the output, such as `head`, has closed it
        except KeyboardInterrupt:
            print("isda: interrupted", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            sys.exit(f"isda: {escape_control_characters(_error_line(error))}")


@contextmanager
def _tracebacks(requested: bool) -> Iterator[None]:
    """Show tracebacks while the block runs, by an environment variable that started processes inherit."""
    before = os.environ.get(DEBUG_VARIABLE)
    if requested:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        if requested and before is None:
            del os.environ[DEBUG_VARIABLE]
        elif requested and before is not None:
            os.environ[DEBUG_VARIABLE] = before


def _error_line(error: Exception) -> str:
    """The last line of a command that failed; prints the traceback before it if requested."""
    if debugging():
        print(escape_control_characters(traceback_text(error)), end="", file=sys.stderr)
    elif not is_package_error(error):
        return f"{describe_error(error)}; run again with --debug for the traceback"
    return describe_error(error)


def _run(words: list[str]) -> None:
    first = words[0] if words else "--help"
    if first in GROUPS:
        _dispatch(GROUPS[first], f"isda {first}", words[1:], f"{first}.", COMMANDS[first])
    elif first == "--version":
        from isda import __version__

        print(f"isda {__version__}")
    else:
        _dispatch(COMMANDS, "isda", words, "", "Implicit semantic data augmentation.")


def _dispatch(commands: Mapping[str, str], program: str, words: list[str], prefix: str, about: str) -> None:
    """Run the command that the first word names, or list the commands."""
    first = words[0] if words else "--help"
    if first in commands:
        with needed_by(f"{program} {first}"), current_folder_on_path():
            import tyro

            from isda.cli.runtime_options import REGISTRY

            function = command(prefix + first, words[1:])
            tyro.cli(function, prog=f"{program} {first}", args=words[1:], registry=REGISTRY)
    elif first in ("-h", "--help", "help"):
        print(_help(commands, program, about))
    else:
        hint = did_you_mean(first, commands) or f"; there are {', '.join(commands)}"
        raise ValueError(f"no command {f'{program} {first}'.removeprefix('isda ')!r}{hint}")


def _help(commands: Mapping[str, str], program: str, about: str) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {summary}" for name, summary in commands.items()]
    notes = f"`{program} COMMAND --help` explains a command"
    notes += ", `isda --version` prints the version." if program == "isda" else "."
    notes += "\n`--debug` with any command shows the traceback of an error."
    if find_spec("tyro") is None:
        notes += f"\nThe commands need libraries that are not installed: {install_command('lab')} installs them."
    return "\n".join([f"usage: {program} COMMAND [OPTIONS]", "", about, "", *lines, "", notes])
