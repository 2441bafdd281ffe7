"""The code on every page is right: commands exist and take these options, files and targets are there, Python compiles.

Examples with prompts are run by `make doctest`.
"""

import functools
import re
import sys
from pathlib import Path

import pytest
import tyro

import deviations
from code_blocks import Block, blocks, commands
from isda.lab.cli.main import COMMANDS, GROUPS, command
from isda.lab.cli.runtime_options import REGISTRY
from memory_table import PAGE, written
from reference import command_overview

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same under another name, which pytest brings
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
GENERATED = [page for page in command_overview().pages if page.title != "isda completion"]
"""Without one whose examples write to the home folder."""
BLOCKS += [block for page in GENERATED for block in blocks(Path(page.uri), page.text)]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

OWN_CODE = {"sine:Sine"}
"""A task that docs/extend.md lets its reader write; tests/test_extending.py runs it."""


def check_isda(words: list[str]) -> None:
    """Read the words as `isda` would, and do nothing."""
    name, rest = words[0], words[1:]
    if name in GROUPS:
        assert rest[0] in GROUPS[name], f"no command isda {name} {rest[0]}"
        name, rest = f"{name}.{rest[0]}", rest[1:]
    elif name.startswith("-"):
        return
    else:
        assert name in COMMANDS, f"no command isda {name}"
    if "..." in rest or OWN_CODE & set(rest):
        return
    made = command(name, rest)

    @functools.wraps(made)
    def read(*_: object, **__: object) -> None:
        pass

    try:
        tyro.cli(read, args=rest, registry=REGISTRY, console_outputs=False)
    except SystemExit as ended:
        if ended.code:
            pytest.fail(f"isda {' '.join(words)}: refused")


def check(words: list[str]) -> None:
    """A command as the documentation writes it."""
    program, rest = Path(words[0]).name, words[1:]
    if program == "isda":
        check_isda(rest)
    elif program == "torchrun":
        check_isda(rest[rest.index("isda") + 1 :])
    elif program == "make":
        assert {word for word in rest if "=" not in word and not word.startswith("-")} <= TARGETS
    elif program == "python":
        assert rest[0] == "-m" or (ROOT / rest[0]).is_file(), f"no file {rest[0]}"
    elif program == "pip":
        for extras in re.findall(r"\[(.*?)\]", " ".join(rest)):
            assert set(extras.split(",")) <= set(EXTRAS)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("sh", "bash")], ids=str)
def test_commands_exist_and_take_these_options(block: Block):
    found = commands(block)
    assert found
    for words in found:
        check(words)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python" and ">>>" not in block.code], ids=str
)
def test_python_without_prompts_compiles(block: Block):
    compile(block.code, str(block), "exec")


def test_the_memory_table_is_what_the_models_take():
    text = PAGE.read_text(encoding="utf-8")
    assert "| ResNet-50 on ImageNet | 1000 | 2048 |" in text
    assert written(text) == text, "python website/memory_table.py writes it"


def test_the_page_of_deviations_is_what_the_recipes_say():
    assert deviations.PAGE.read_text(encoding="utf-8") == deviations.page(), "python website/deviations.py writes it"
