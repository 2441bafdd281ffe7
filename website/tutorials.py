"""The tutorials: pages of docs/tutorials with their outputs, figures and notebooks, all made from one text.

A page is Markdown with blocks of Python and of the shell. Each block is a cell of a notebook, which is executed from
top to bottom; what a cell prints is written below its block on the page, and its figures become the files NAME-1.png,
NAME-2.png, ..., which the page shows with ``![what it shows](NAME-1.png)``. A block below ``<!-- not run -->`` is text.

    python website/tutorials.py --data-root DATA             execute all tutorials; write pages, figures and notebooks
    python website/tutorials.py your-loop --data-root DATA   one of them
    python website/tutorials.py --text                       after changes of text alone: execute nothing
    python website/tutorials.py --check                      execute quickly, write nothing; what `make docs-check` does
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from code_blocks import blocks

__all__ = ["NAMES", "PAGES", "Cell", "cells", "execute", "figures_shown", "notebook", "stored", "with_outputs"]

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "tutorials"
NAMES = ("your-loop", "photographs", "embeddings", "report", "directions")
NEEDS = {"your-loop": "cifar10"}
"""The data set that the written figures of a tutorial are made from; its checks run on digits."""
QUICK = {"ISDA_TUTORIAL": "quick"}
"""The environment in which tutorials take fewer epochs and seeds."""
TIMEOUT = 900
COLOURS = 128
"""Of the palette of a figure: a third of the size, and no visible difference."""

_OUTPUT = re.compile(r"\n<!-- output -->\n```text\n(.*?)```\n", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Bold and colours: a kernel asks programs for them."""
_NOT_RUN = "<!-- not run -->\n"


@dataclass
class Cell:
    """A part of a page: text (with an empty language), or code with what it printed and drew."""

    language: str
    text: str
    printed: str = ""
    figures: list[bytes] = field(default_factory=list)

    @property
    def code(self) -> str:
        """The source of the notebook's cell."""
        return f"%%sh\n{self.text}" if self.language == "sh" else self.text


def cells(name: str) -> list[Cell]:
    """The parts of a page in order, without the outputs that were written into it; `with_outputs` joins them again."""
    page = PAGES / f"{name}.md"
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    parts: list[Cell] = []
    start = 0
    for block in blocks(page):
        begin = block.line - 1
        if block.language in ("python", "sh") and lines[begin - 1] != _NOT_RUN:
            parts.append(_text(lines[start:begin]))
            parts.append(Cell(block.language, block.code.rstrip("\n")))
            start = begin + block.code.count("\n") + 2
    return [*parts, _text(lines[start:])]


def _text(lines: list[str]) -> Cell:
    return Cell("", _OUTPUT.sub("", "".join(lines)))


def with_outputs(parts: list[Cell]) -> str:
    """The page, with what each cell printed below its block."""
    made = []
    for cell in parts:
        if not cell.language:
            made.append(cell.text)
            continue
        made.append(f"```{cell.language}\n{cell.text}\n```\n")
        if cell.printed:
            made.append(f"\n<!-- output -->\n```text\n{cell.printed}\n```\n")
    return "".join(made)


def figures_shown(name: str, text: str) -> list[int]:
    """The numbers of the figures of a tutorial that its page shows, in order."""
    return [int(number) for number in re.findall(rf"!\[[^\]]+\]\({name}-(\d+)\.png\)", text)]


def notebook(name: str, parts: list[Cell]) -> Any:
    """The notebook of a page. Figures are outputs of their cells, so the text does not show them a second time."""
    made = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for cell in parts:
        identity = f"{name}-{len(made.cells)}"
        if not cell.language:
            text = re.sub(rf"!\[[^\]]+\]\({name}-\d+\.png\)\n?", "", cell.text).strip()
            if text:
                made.cells.append(nbformat.v4.new_markdown_cell(text, id=identity))
            continue
        count += 1
        outputs = []
        if cell.printed:
            outputs.append(nbformat.v4.new_output("stream", name="stdout", text=f"{cell.printed}\n"))
        for figure in cell.figures:
            image = base64.b64encode(figure).decode()
            outputs.append(nbformat.v4.new_output("display_data", {"image/png": image, "text/plain": "<Figure>"}))
        executed = count if outputs else None
        made.cells.append(nbformat.v4.new_code_cell(cell.code, id=identity, outputs=outputs, execution_count=executed))
    return made


def execute(name: str, folder: Path, environment: dict[str, str]) -> list[Cell]:
    """Run a tutorial in a folder of its own, from nothing.

    Args:
        name: of the tutorial.
        folder: an empty folder in which the notebook runs.
        environment: variables beside those of this process.

    Raises:
        ValueError: a cell raised an error, printed a warning or the name of the folder, or drew other figures than
            the page shows.
    """
    parts = cells(name)
    run = notebook(name, parts)
    client = NotebookClient(
        run,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
    )
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {
        "PATH": programs,
        "COLUMNS": "100",
        "IPYTHONDIR": str(folder / ".ipython"),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm, where Jupyter's widgets are not installed
    }
    try:
        client.execute(env=os.environ | own | environment)
    except CellExecutionError as error:
        raise ValueError(f"{name}: a cell raised an error\n{_STYLE.sub('', str(error))}") from None
    executed = [cell for cell in run.cells if cell.cell_type == "code"]
    for cell, result in zip((cell for cell in parts if cell.language), executed, strict=True):
        _take_outputs(name, cell, result.outputs)
        if str(folder) in cell.printed:
            raise ValueError(f"{name}: a cell prints the path of its folder\n{cell.code}\n{cell.printed}")
    drawn, shown = sum(len(cell.figures) for cell in parts), figures_shown(name, with_outputs(parts))
    if shown != list(range(1, drawn + 1)):
        raise ValueError(f"{name}: the cells draw {drawn} figures, the page shows those of the numbers {shown}")
    return parts


def stored(name: str) -> list[Cell]:
    """The parts of a page with the outputs that its notebook has.

    Raises:
        ValueError: the code of the notebook is not that of the page.
    """
    parts = cells(name)
    code = [cell for cell in parts if cell.language]
    results = [cell for cell in nbformat.read(PAGES / f"{name}.ipynb", as_version=4).cells if cell.cell_type == "code"]
    if [cell.code for cell in code] != [cell.source for cell in results]:
        raise ValueError(f"{name}: the code of the page is not that of its notebook; `make tutorials` executes it")
    for cell, result in zip(code, results, strict=True):
        for output in result.outputs:
            if output.output_type == "stream":
                cell.printed = output.text.rstrip("\n")
            else:
                cell.figures.append(base64.b64decode(output.data["image/png"]))
    return parts


def _take_outputs(name: str, cell: Cell, outputs: list[Any]) -> None:
    printed = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stdout":
            printed.append(output.text)
        elif output.output_type == "stream":
            # Commands report their progress there; from Python it is a warning.
            if cell.language == "python":
                raise ValueError(f"{name}: a cell warned\n{cell.code}\n{output.text}")
        elif "image/png" in output.data:
            cell.figures.append(_small(base64.b64decode(output.data["image/png"])))
        else:
            printed.append(f"{output.data['text/plain']}\n")
    text = _STYLE.sub("", "".join(printed))
    cell.printed = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _small(figure: bytes) -> bytes:
    made = io.BytesIO()
    opaque = Image.open(io.BytesIO(figure)).convert("RGB")
    opaque.quantize(COLOURS, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()


def write(name: str, parts: list[Cell]) -> None:
    """Write page, notebook and figures."""
    (PAGES / f"{name}.md").write_text(with_outputs(parts), encoding="utf-8")
    nbformat.write(notebook(name, parts), PAGES / f"{name}.ipynb")
    for old in PAGES.glob(f"{name}-*.png"):
        old.unlink()
    for number, figure in enumerate((figure for cell in parts for figure in cell.figures), start=1):
        (PAGES / f"{name}-{number}.png").write_bytes(figure)


def main() -> None:
    """Execute tutorials, and write what they printed and drew unless --check is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="holds cifar10")
    parser.add_argument("--check", action="store_true", help="execute with few epochs and seeds, and write nothing")
    parser.add_argument("--text", action="store_true", help="write text and outputs as they are; the code is unchanged")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"NAME must be one of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    environment = QUICK if options.check else {"ISDA_DATA": str(options.data_root.resolve())}
    for name in options.names or NAMES:
        if options.text:
            write(name, stored(name))
            continue
        if name in NEEDS and not options.check:
            from isda.lab import data

            data.load(NEEDS[name], options.data_root)  # an error says which files to put where
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            parts = execute(name, Path(folder), environment)
        if not options.check:
            write(name, parts)
        print(f"{name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
