"""The command line: ``isda COMMAND``, also as ``python -m isda COMMAND``.

Each command is a function with typed arguments in a light module of its own room; what it needs is imported when it
runs, so that ``isda --help`` is quick.
"""

import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import tyro

__all__ = ["main"]


def commands() -> dict[str, Callable[..., None]]:
    """The commands by name, in the order of the help text."""
    from isda.data.command import data
    from isda.networks.command import networks
    from isda.report.command import report
    from isda.train.command import train
    from isda.train.compare_command import compare
    from isda.train.trained_commands import evaluate, predict

    return {
        "train": train,
        "compare": compare,
        "report": report,
        "evaluate": evaluate,
        "predict": predict,
        "networks": networks,
        "data": data,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: the words after ``isda``; those of the process if not given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    known = commands()
    if words and not words[0].startswith("-") and words[0] not in known:
        nearest = get_close_matches(words[0], known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
        sys.exit(f"isda: no command {words[0]!r}; {hint}")
    try:
        tyro.extras.subcommand_cli_from_dict(
            known, prog="isda", description="Implicit semantic data augmentation.", args=words
        )
    except BrokenPipeError:
        # Whoever read the output, `head` for one, has seen enough; what is still buffered must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit("isda: interrupted")
    except (ValueError, OSError) as error:
        sys.exit(f"isda: {error}")
