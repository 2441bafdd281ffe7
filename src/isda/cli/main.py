"""From the words of a command line to a command, and from how it ends to an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from isda.choices import did_you_mean
from isda.cli.surroundings import prepared
from isda.plain_text import harmless

__all__ = ["COMMANDS", "command", "main"]

COMMANDS = {
    "train": "Train a network and write a run folder: configuration, metrics, checkpoints, result and weights.",
    "compare": "Train several methods with several seeds on one data set, and compare their errors.",
    "transfer": "Say what the features of finished runs are worth on other data: a linear probe, or fine-tuning.",
    "report": "Compare finished and unfinished runs: a table here, and everything about them in one HTML page.",
    "evaluate": "Measure a trained network: error, negative log-likelihood and calibration.",
    "predict": "Say what a trained network sees in image files.",
    "networks": "Print parameters, multiply-adds and what ISDA adds to them, of every network beside the paper's.",
    "data": "List the data sets and where each is looked for; with a name, load that one and describe it.",
    "completion": "Print a script that makes the shell complete commands and options.",
}
"""Each is a file of this room; the summaries stand here too so that `isda --help` need not import torch."""


def command(name: str, words: Sequence[str] = ()) -> Callable[..., None]:
    """The function of a command, with the options of the task that ``words`` ask for."""
    module = import_module(f"isda.cli.{name}")
    made: Callable[..., None] = module.command_for(words) if hasattr(module, "command_for") else getattr(module, name)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: the words after ``isda``; those of the process if not given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with prepared():
        try:
            _run(words)
            sys.stdout.flush()
        except BrokenPipeError:
            pass  # whoever read the output, `head` for one, has seen enough
        except KeyboardInterrupt:
            print("isda: interrupted", file=sys.stderr)
            sys.exit(130)
        except (ValueError, OSError) as error:
            sys.exit(f"isda: {harmless(str(error))}")


def _run(words: list[str]) -> None:
    first = words[0] if words else "--help"
    if first in COMMANDS:
        import tyro

        from isda.cli.options import REGISTRY

        tyro.cli(command(first, words[1:]), prog=f"isda {first}", args=words[1:], registry=REGISTRY)
    elif first in ("-h", "--help", "help"):
        print(_help())
    elif first == "--version":
        from isda import __version__

        print(f"isda {__version__}")
    else:
        hint = did_you_mean(first, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise ValueError(f"no command {first!r}{hint}")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    told = "`isda COMMAND --help` explains a command, `isda --version` prints the version."
    return "\n".join(
        ["usage: isda COMMAND [OPTIONS]", "", "Implicit semantic data augmentation.", "", *lines, "", told]
    )
