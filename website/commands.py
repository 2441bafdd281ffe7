"""The page of the command line, from what `isda COMMAND --help` prints: `make docs` calls `write`."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "generated" / "_commands.md"
COMMANDS = [
    *("train", "compare", "tune", "report", "predict", "evaluate", "export", "embed", "classify", "directions"),
    *("visualize", "map", "tightness", "segment", "detect", "generate", "transfer", "reproduce", "methods", "networks"),
    "data",
]


@cache
def help_of(command: str) -> str:
    """What the command prints, without colours and 100 characters wide."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    words = [sys.executable, "-m", "isda", *command.split(), "--help"]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True).stdout


def write() -> None:
    """A section for each command."""
    with ThreadPoolExecutor(2) as pool:
        texts = pool.map(help_of, COMMANDS)
    sections = [f"## isda {name}\n\n```text\n{text.strip()}\n```\n" for name, text in zip(COMMANDS, texts, strict=True)]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(sections), encoding="utf-8")
