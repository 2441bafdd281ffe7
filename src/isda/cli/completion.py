"""The command ``isda completion``."""

from typing import Literal

import tyro

__all__ = ["completion"]


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh"]]) -> None:
    """Print a script that makes the shell complete commands and options.

    ``isda completion bash > ~/.local/share/bash-completion/completions/isda``, or for zsh
    ``isda completion zsh > ~/.zfunc/_isda`` with that folder in $fpath.

    Args:
        shell: bash or zsh.
    """
    from isda.cli.main import COMMANDS, GROUPS, command
    from isda.cli.options import REGISTRY

    tyro.extras.subcommand_cli_from_dict(
        {name: command(name) for name in COMMANDS if name not in GROUPS},
        prog="isda",
        args=["--tyro-print-completion", shell],
        registry=REGISTRY,
    )
