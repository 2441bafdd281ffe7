"""Runs the code blocks of the pages: python website/code_blocks.py [PAGE ...] prints how many each page has.

The blocks of a page run in order, in an empty folder with a few sample files: `python` in one namespace, with prompts
as doctests, `sh` in a shell. Commands in a `console` block take data or time that is not here: their options are
looked up in the help of the command. Cells of notebook pages are run by `make docs`.
"""

import contextlib
import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from PIL import Image
from sklearn.datasets import load_digits

from commands import COMMANDS, ROOT, help_of

LIMIT = 300  # seconds of a block, on a busy machine
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
os.environ["PYTHONPATH"] = str(ROOT / "src")
sys.path.insert(0, str(ROOT / "src"))
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)(?P=fence)", re.M | re.S
)


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    code: str


def pages() -> list[Path]:
    """Everything that is read."""
    written = (path for path in (ROOT / "docs").rglob("*.md") if "generated" not in path.parts)
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(written)]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, without the indentation of lists and tabs."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 2, found["language"], dedent(found["code"]))
        for found in _FENCE.finditer(text)
    ]


def sample_files(folder: Path) -> None:
    """What commands of the pages read: photos/CLASS/*.png and table.csv."""
    digits = load_digits()
    lines = [",".join([*(f"x{column}" for column in range(64)), "label"])]
    for number in range(300):
        label = "abcdefghij"[digits.target[number]]
        path = folder / "photos" / label / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15).astype("uint8")).save(path)
        lines.append(",".join([*(f"{pixel:.0f}" for pixel in digits.data[number]), label]))
    (folder / "table.csv").write_text("\n".join(lines), encoding="utf-8")


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Execute a block in the namespace of its page."""
    if ">>>" not in block.code:
        exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.code, names, block.page.name, str(block.page), block.line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    if runner.run(test, out=told.append, clear_globs=False).failed:
        raise AssertionError("".join(told))
    names.update(test.globs)


def check_options(block: Block) -> None:
    """Every option of the `isda` commands of a block occurs in their help."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "isda" in words:
            words = words[words.index("isda") + 1 :]
            assert words[0] in COMMANDS or words[0].startswith("-"), f"no command isda {words[0]}"
            inner = words[1] if len(words) > 1 and words[0] in ("segment", "detect", "generate") else ""
            text = help_of(f"{words[0]} {inner}".strip())
            for option in (word.partition("=")[0] for word in words[1:] if word.startswith("--")):
                assert option in text, f"isda {words[0]} has no option {option}"


def stop(*_: object) -> None:
    """The answer to an alarm."""
    raise TimeoutError(f"a block must end within {LIMIT} seconds")


def run(block: Block, names: dict[str, Any]) -> None:
    """Run or check one block, within the limit."""
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        if block.language == "python":
            run_python(block, names)
        elif block.language == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], check=True, stdout=subprocess.DEVNULL)
        else:
            check_options(block)
    except Exception as error:
        error.add_note(f"{block.page.relative_to(ROOT)}:{block.line}")
        raise
    finally:
        signal.alarm(0)


def run_page(page: Path) -> int:
    """Run the blocks of a page in a folder of its own; how many there were."""
    found = [block for block in blocks(page) if block.language in ("python", "sh", "console")]
    if not found or page.parent.name == "tutorials":
        return 0
    names: dict[str, Any] = {"__name__": page.stem}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sample_files(Path(folder))
        for block in found:
            run(block, names)
    return len(found)


if __name__ == "__main__":
    for page in [Path(word).resolve() for word in sys.argv[1:]] or pages():
        print(page.relative_to(ROOT), run_page(page), flush=True)
