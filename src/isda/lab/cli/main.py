"""Parse the command line, run a command, and map errors to exit statuses."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from isda._utils.choices import did_you_mean
from isda._utils.errors import DEBUG_VARIABLE, debugging, describe_error, is_package_error, traceback_text
from isda._utils.extras import install_command, needed_by
from isda._utils.text import escape_control_characters
from isda.lab.cli.console import COMMAND_WORDS, announce_loading, prepare_console
from isda.lab.engine.options import current_folder_on_path

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
            "Train a classifier on rows of features, report its accuracy, and predict the rows without a label."
        ),
    },
    "Look inside": {
        "directions": "Show in which directions the features of each class vary: one HTML page with training images.",
        "explore": "Serve a page to move features along the directions of classes and see the nearest images.",
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
        "study": "Train variants of a method and show the contribution of each part: Figures 10, 11 and Table 8.",
    },
    "Tools": {
        "methods": "List the methods of `isda train` and the other tasks, with their options and defaults.",
        "networks": "List the networks with image size and parameters, or their costs beside the paper's.",
        "data": "List the data sets and where they are searched; with a name, load and describe that set.",
        "completion": "Print a shell script that completes commands and options.",
    },
}
"""Commands and their summaries by section of `isda --help`, stated here so that it does not import torch."""
HIDDEN = {"run": "Execute one run of a plan that --on slurm has written, as each element of its array job does."}
"""Commands that other commands call."""
COMMANDS = {name: summary for part in (*SECTIONS.values(), HIDDEN) for name, summary in part.items()}
"""All commands and their summaries."""
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
    "explore": "analysis",
    "map": "analysis",
    "tightness": "analysis",
    "reproduce": "reproduce_command",
    "run": "executors",
}
"""Modules of `isda.lab.cli` that define commands of another name."""
AT_ONCE = ("completion",)
"""Commands that import nothing heavy."""
MAX_WIDTH = 120
"""Of the list of commands."""
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
"""Groups of commands: modules of `isda.lab.cli` with functions, and TASK_COMMANDS that are generated from a TASK."""


def command(name: str, words: Sequence[str] = ()) -> Callable[..., None]:
    """The function of a command, with the options of the task that ``words`` select.

    Args:
        name: one of COMMANDS that is not a group, or GROUP.NAME.
        words: that follow it.
    """
    group, _, short_name = name.rpartition(".")
    module = import_module(f"isda.lab.cli.{group or _MODULES.get(short_name, short_name)}")
    if group and short_name in module.TASK_COMMANDS:
        from isda.lab.cli.tasks import group_task

        fixed = group_task(module, f"{GROUPS[group][short_name]}\n{module.TASK_COMMANDS[short_name]}", words)
        function = import_module(f"isda.lab.cli.{short_name}").command_for(words, fixed)
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
        _dispatch({first: GROUPS[first]}, f"isda {first}", words[1:], f"{first}.", COMMANDS[first])
    elif first == "--version":
        from isda import __version__

        print(f"isda {__version__}")
    else:
        _dispatch({**SECTIONS, "": HIDDEN}, "isda", words, "", "Implicit semantic data augmentation.")


def _dispatch(
    sections: Mapping[str, Mapping[str, str]], program: str, words: list[str], prefix: str, about: str
) -> None:
    """Run the command that the first word names, or list the commands; a section without a name is not listed."""
    commands = {name: summary for part in sections.values() for name, summary in part.items()}
    first = words[0] if words else "--help"
    if first in commands:
        with needed_by(f"{program} {first}"), current_folder_on_path():
            _call(f"{program} {first}", prefix + first, words[1:])
    elif first in ("-h", "--help", "help"):
        print(_help(sections, program, about))
    else:
        listed = [name for title, part in sections.items() if title for name in part]
        hint = did_you_mean(first, commands) or f"; there are {', '.join(listed)}"
        raise ValueError(f"no command {f'{program} {first}'.removeprefix('isda ')!r}{hint}")


def _call(program: str, name: str, words: list[str]) -> None:
    """Parse the words of a command and call it, or print its help."""
    import tyro

    from isda.lab.cli.help import HELP_ALL, HELP_WORDS, help_text, options_of, without_aliases
    from isda.lab.cli.runtime_options import REGISTRY

    function = command(name, words)
    if HELP_ALL in words or not set(words).isdisjoint(HELP_WORDS):
        print(help_text(function, program, everything=HELP_ALL in words))
        sys.exit(0)
    words = without_aliases(words, options_of(function))
    COMMAND_WORDS.set((*program.split()[1:], *words))

    @functools.wraps(function)
    def announced(*values: object, **options: object) -> None:
        announce_loading()
        function(*values, **options)

    tyro.cli(announced if name not in AT_ONCE else function, prog=program, args=words, registry=REGISTRY)


def _help(sections: Mapping[str, Mapping[str, str]], program: str, about: str) -> str:
    listed = {title: part for title, part in sections.items() if title}
    column = max(len(name) for part in listed.values() for name in part) + 4
    width = max(2 * column, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    wrap = functools.partial(textwrap.wrap, width=width, break_on_hyphens=False)
    lines = [f"usage: {program} COMMAND [OPTIONS]", "", *wrap(about)]
    for title, part in listed.items():
        lines += ["", *([title] if len(listed) > 1 else [])]
        for name, summary in part.items():
            lines += wrap(summary, initial_indent=f"  {name:{column - 2}}", subsequent_indent=" " * column)
    version = ", `isda --version` prints the version." if program == "isda" else "."
    lines += ["", *wrap(f"`{program} COMMAND --help` explains a command{version}")]
    lines += wrap("`--debug` with any command shows the traceback of an error.")
    if find_spec("tyro") is None:
        lines.append(f"The commands need libraries that are not installed: {install_command('lab')} installs them.")
    return "\n".join(lines)
