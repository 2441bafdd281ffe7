"""The code blocks of Markdown files, and the commands in those of the shell, split into words by the shell itself."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks", "commands"]

_REDIRECTION = re.compile(r" > \S+")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE
)
# A command is written at once: the two sides of a pipe run at the same time.
_SPLITTER = """
command_not_found_handle() { local words; printf -v words '%s\\037' "$@"; printf '%s\\036' "$words" >&3; }
make() { command_not_found_handle make "$@"; }
PATH=/nonexistent
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        """Where it is."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The blocks of a page, in order; a generated page has its text in no file."""
    if text is None:
        text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 1, found["language"], found["code"])
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[list[str]]:
    """The words of each command in a block of the shell: bash reads it where there is no program it could start."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        # Output goes nowhere: the folders that it is written to belong to a user.
        code = _REDIRECTION.sub(" > /dev/null", block.code)
        script = f"exec 3>>{told}\n{_SPLITTER}\n{code}"
        done = subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", script], capture_output=True, text=True, cwd=folder, timeout=60
        )
        assert not done.stderr, f"{block}: {done.stderr}"
        return [line.split("\037")[:-1] for line in told.read_text().split("\036") if line]
