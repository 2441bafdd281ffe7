"""Tutorials: every notebook runs from nothing, is what its page says, and shows the outputs that the page shows."""

import re
from pathlib import Path

import nbformat
import pytest

import tutorials
from tutorials import NAMES, PAGES, QUICK, Cell

MOST_OF_A_FIGURE, MOST_OF_ALL_NOTEBOOKS = 80_000, 600_000


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_nothing(name, tmp_path, monkeypatch):
    """With few epochs, without data that a reader has to download, in an empty folder; warnings are errors."""
    monkeypatch.delenv("ISDA_DATA", raising=False)
    parts = tutorials.execute(name, tmp_path, QUICK)
    assert any(cell.printed for cell in parts)


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_what_the_page_says(name):
    page = tutorials.notebook(name, tutorials.cells(name))
    notebook = nbformat.read(PAGES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    found, expected = ([(cell.cell_type, cell.source) for cell in made.cells] for made in (notebook, page))
    assert found == expected, (
        "python website/tutorials.py --text writes it if the code is unchanged, make tutorials else"
    )


@pytest.mark.parametrize("name", NAMES)
def test_page_and_notebook_show_the_same_outputs(name):
    """What `make tutorials` wrote into both, and into the files of the figures."""
    parts = tutorials.stored(name)
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert tutorials.with_outputs(parts) == text
    figures = [figure for cell in parts for figure in cell.figures]
    assert tutorials.figures_shown(name, text) == list(range(1, len(figures) + 1))
    files = sorted(PAGES.glob(f"{name}-*.png"))
    assert [path.read_bytes() for path in files] == figures
    assert all(len(figure) < MOST_OF_A_FIGURE for figure in figures)


def test_there_is_a_page_for_every_name_and_notebooks_are_small():
    assert {path.stem for path in PAGES.glob("*.md")} == {*NAMES, "index"}
    assert {path.stem for path in PAGES.glob("*.ipynb")} == set(NAMES)
    assert sum(path.stat().st_size for path in PAGES.glob("*.ipynb")) < MOST_OF_ALL_NOTEBOOKS
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in index and f"({name}.ipynb)" in index for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_has_prompts(name):
    """`make doctest` runs examples with prompts by themselves, without the cells above."""
    assert not re.search(r"^>>>", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)


def write_page(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tutorials, "PAGES", folder)
    page = folder / "made.md"
    page.write_text(text, encoding="utf-8")
    return page


PAGE = """# Made

```python
print(1 + 1)
```

Text.

<!-- not run -->
```sh
exit 1
```

```python
2 * 21
```

The end.
"""


def test_outputs_are_written_once_and_found_again(tmp_path, monkeypatch):
    page = write_page(tmp_path, PAGE, monkeypatch)
    parts = tutorials.cells("made")
    assert [cell.text for cell in parts if cell.language] == ["print(1 + 1)", "2 * 21"]
    assert tutorials.with_outputs(parts) == PAGE
    for cell, printed in zip([cell for cell in parts if cell.language], ("2", "42\nand more"), strict=True):
        cell.printed = printed
    for _ in range(2):
        tutorials.write("made", parts)
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- output -->") == 2
        assert "```\n\n<!-- output -->\n```text\n42\nand more\n```\n\nThe end.\n" in text
        assert [(cell.language, cell.text) for cell in tutorials.cells("made")] == [
            (cell.language, cell.text) for cell in parts
        ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings\nwarnings.warn('careful')", "careful"),
        ("import os\nprint(os.getcwd())", "path of its folder"),
        ("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()", "draw 1 figures"),
    ],
    ids=["error", "warning", "path", "figure"],
)
def test_what_a_page_must_not_do_is_refused(code, message, tmp_path, monkeypatch):
    write_page(tmp_path, f"# Made\n\n```python\n{code}\n```\n", monkeypatch)
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(ValueError, match=message):
        tutorials.execute("made", folder, {})


def test_a_cell_of_the_shell_is_a_cell_of_the_notebook():
    assert Cell("sh", "isda --version").code == "%%sh\nisda --version"
