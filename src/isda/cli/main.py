"""Parse the command line, run a command, and map errors to exit statuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

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
    "study": "Train variants of a method and show what each part of it is worth: Figures 10, 11 and Table 8.",
    "reproduce": "Make tables and figures of the paper again, and print ours beside the paper's.",
    "transfer": "Say what the features of finished runs are worth on other data: a linear probe, or fine-tuning.",
    "report": "Compare finished and unfinished runs: a table here, and everything about them in one HTML page.",
    "evaluate": "Measure a trained network: error, negative log-likelihood and calibration.",
    "predict": "Say what a trained network sees in image files.",
    "embed": "Write the features that a network makes of the images of a data set to a file, for `isda classify`.",
    "classify": "Learn to classify rows of features, say how well it works, and predict the rows without a label.",
    "networks": "Print parameters, multiply-adds and what ISDA adds to them, of every network beside the paper's.",
    "data": "List the data sets and where each is looked for; with a name, load that one and describe it.",
    "directions": "Show the directions in which the features of each class vary, by training images, in one HTML page.",
    "visualize": "Show what ISDA's moved features look like: the paper's reverse mapping through a trained generator.",
    "explore": "Open a page on this machine to move along the directions of classes and see what lies there.",
    "map": "Draw maps of the features of runs side by side, with figures of how well they keep the classes apart.",
    "tightness": "Measure how far the published and the tilted bound lie above the expectation that they bound.",
    "segment": "Semantic segmentation: train, compare, tune, evaluate and predict with a class for every pixel.",
    "detect": "Detection and instance segmentation: train, compare, evaluate and predict boxes and masks of objects.",
    "generate": "Generators of images: train, evaluate and sample GANs, whose images can be part of every batch.",
    "export": "Write a trained classifier under the names that torchvision, timm or MMDetection load.",
    "run": "Make one run of a plan that --on slurm has written: what each element of its array job does.",
    "completion": "Print a script that makes the shell complete commands and options.",
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
        "evaluate": "Measure a trained generator by what a classifier sees: FID, KID, diversity, intended labels.",
        "sample": "Make images with a trained generator: a PNG with a row for each class, perhaps an .npz of many.",
    },
}
"""Groups of commands; each group is a module of `isda.cli` with a function per command."""


def command(name: str, words: Sequence[str] = ()) -> Callable[..., None]:
    """The function of a command, with the options of the task that ``words`` ask for.

    Args:
        name: one of COMMANDS that is no group, or GROUP.NAME.
        words: that follow it.
    """
    group, _, own = name.rpartition(".")
    module = import_module(f"isda.cli.{group or _MODULES.get(own, own)}")
    function: Callable[..., None] = (
        module.command_for(words) if hasattr(module, "command_for") else getattr(module, _FUNCTIONS.get(own, own))
    )
    return function


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
            pass  # whoever read the output, `head` for one, has seen enough
        except KeyboardInterrupt:
            print("isda: interrupted", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            sys.exit(f"isda: {escape_control_characters(_error_line(error))}")


@contextmanager
def _tracebacks(asked: bool) -> Iterator[None]:
    """In the environment while the block runs: processes that the command starts show theirs too."""
    before = os.environ.get(DEBUG_VARIABLE)
    if asked:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        if asked and before is None:
            del os.environ[DEBUG_VARIABLE]
        elif asked and before is not None:
            os.environ[DEBUG_VARIABLE] = before


def _error_line(error: Exception) -> str:
    """The last line of a command that failed; the traceback goes before it where it is asked for."""
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


def _dispatch(commands: Mapping[str, str], program: str, words: list[str], folder: str, about: str) -> None:
    """Run the command that the first word names, or say which there are."""
    first = words[0] if words else "--help"
    if first in commands:
        with needed_by(f"{program} {first}"), current_folder_on_path():
            import tyro

            from isda.cli.runtime_options import REGISTRY

            made = command(folder + first, words[1:])
            tyro.cli(made, prog=f"{program} {first}", args=words[1:], registry=REGISTRY)
    elif first in ("-h", "--help", "help"):
        print(_help(commands, program, about))
    else:
        hint = did_you_mean(first, commands) or f"; there are {', '.join(commands)}"
        raise ValueError(f"no command {f'{program} {first}'.removeprefix('isda ')!r}{hint}")


def _help(commands: Mapping[str, str], program: str, about: str) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {summary}" for name, summary in commands.items()]
    told = f"`{program} COMMAND --help` explains a command"
    told += ", `isda --version` prints the version." if program == "isda" else "."
    told += "\n`--debug` with any command shows the traceback of an error."
    if find_spec("tyro") is None:
        told += "\nNone of them can run yet: they need libraries that are not installed. "
        told += f"{install_command('lab')} brings them."
    return "\n".join([f"usage: {program} COMMAND [OPTIONS]", "", about, "", *lines, "", told])
