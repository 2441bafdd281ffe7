"""The reference pages that are generated when the site is built: one per class, group of functions and command.

docs/reference/NAME/index.md lists the classes and functions of a subject, each as a line ``::: isda.module.Name``. On
the site that page is an overview with a link and the first paragraph of each, a class gets the page
reference/NAME/Class.md, and the functions under one heading share a page. Pages of commands are made from the
signatures that ``isda COMMAND --help`` reads.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import griffe

from isda.lab.cli.help import ALIASES, GENERAL, Option, options_of
from isda.lab.cli.main import COMMANDS, GROUPS, SECTIONS, command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDER = "reference"
COMMAND_OVERVIEW = f"{FOLDER}/commands/index.md"
COMMAND_MARK = "<!-- commands -->"
FUNCTIONS = "Functions"
"""The title of a page of functions that stand under no heading."""

_ENTRY = re.compile(r"^::: (?P<path>[\w.]+)\n", re.MULTILINE)
_HEADING = re.compile(r"^## (?P<title>.+)\n", re.MULTILINE)


@dataclass
class GeneratedPage:
    """A page that no file in docs/ holds."""

    uri: str
    title: str
    text: str


@dataclass
class Overview:
    """A page of docs/reference with the pages that are generated from its entries."""

    text: str
    pages: list[GeneratedPage] = field(default_factory=list)


@cache
def python_overviews() -> dict[str, Overview]:
    """The overviews of the Python interface, by their place in docs/."""
    found = {}
    for path in sorted((DOCS / FOLDER).glob("*/index.md")):
        text = path.read_text(encoding="utf-8")
        if _ENTRY.search(text):
            found[path.relative_to(DOCS).as_posix()] = python_overview(path.parent.name, text)
    return found


def python_overview(name: str, text: str) -> Overview:
    """Split a page into an overview and the pages of its classes and groups of functions."""
    overview = Overview("")
    names = Counter(found["path"].rpartition(".")[2] for found in _ENTRY.finditer(text))
    places = [0, *(found.start() for found in _HEADING.finditer(text)), len(text)]
    for start, end in pairwise(places):
        part = text[start:end]
        heading = _HEADING.match(part)
        paths = [found["path"] for found in _ENTRY.finditer(part)]
        rows = []
        functions = [path for path in paths if not _is_class(path)]
        group = f"{_slug(heading['title'] if heading else FUNCTIONS)}.md"
        for path in paths:
            short = path.rpartition(".")[2]
            if names[short] > 1:
                short = ".".join(path.split(".")[-2:])
            place = f"{short}.md" if _is_class(path) else group
            rows.append(f"| [`{short}`]({place}#{path}) | {_summary(path)} |")
            if _is_class(path):
                overview.pages.append(GeneratedPage(f"{FOLDER}/{name}/{place}", short, _class_page(path)))
        if functions:
            title = heading["title"] if heading else FUNCTIONS
            overview.pages.append(GeneratedPage(f"{FOLDER}/{name}/{group}", title, _function_page(title, functions)))
        table = "\n".join(["| name | purpose |", "|---|---|", *rows, "", ""]) if rows else ""
        overview.text += _ENTRY.sub("", part).rstrip("\n") + "\n\n" + table
    return overview


def _is_class(path: str) -> bool:
    return path.rpartition(".")[2][0].isupper()


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


@cache
def _package() -> griffe.Object | griffe.Alias:
    return griffe.load("isda", search_paths=[ROOT / "src"], resolve_aliases=True)


def _summary(path: str) -> str:
    """The first paragraph of a docstring as the cell of a table."""
    docstring = _package()[path.removeprefix("isda.")].docstring
    assert docstring is not None, f"{path} has no docstring"
    return _cell(docstring.value.split("\n\n")[0])


def _cell(text: str) -> str:
    line = " ".join(text.replace("``", "`").split())
    escaped = re.sub(r"(`[^`]*`)|([<>*_|])", lambda found: found[1] or f"\\{found[2]}", line)
    return escaped.replace("~", "&#126;")


def _class_page(path: str) -> str:
    return f"::: {path}\n    options: {{ heading_level: 1, show_root_full_path: true }}\n"


def _function_page(title: str, paths: list[str]) -> str:
    entries = [f"::: {path}\n    options: {{ show_root_full_path: true }}\n" for path in paths]
    return "\n".join([f"# {title}\n", *entries])


def command_names() -> Iterator[tuple[str, str, str]]:
    """The section, name and summary of each command; those of groups have the name GROUP.NAME."""
    for section, members in SECTIONS.items():
        for name, summary in members.items():
            if name in GROUPS:
                yield from ((section, f"{name}.{one}", text) for one, text in GROUPS[name].items())
            else:
                yield section, name, summary


def command_place(name: str) -> str:
    """Where the page of a command is, beside the overview."""
    return f"{name.replace('.', '-')}.md"


@cache
def command_overview() -> Overview:
    """The overview of the commands and a page for each."""
    tables = []
    section = ""
    for title, name, summary in command_names():
        if title != section:
            section = title
            tables.append(f"\n## {title}\n\n| command | what it does |\n|---|---|")
        tables.append(f"| [`isda {name.replace('.', ' ')}`]({command_place(name)}) | {_cell(summary)} |")
    text = (DOCS / COMMAND_OVERVIEW).read_text(encoding="utf-8").replace(COMMAND_MARK, "\n".join(tables))
    pages = [
        GeneratedPage(f"{FOLDER}/commands/{command_place(name)}", f"isda {name.replace('.', ' ')}", _command_page(name))
        for _, name, _ in command_names()
    ]
    return Overview(text, pages)


def _command_page(name: str) -> str:
    """Usage, description, examples, and the options of a command in sections with their defaults."""
    function, program = command(name), f"isda {name.replace('.', ' ')}"
    options = options_of(function)
    arguments = [option for option in options if option.positional]
    others = [option for option in options if not option.positional]
    description, examples = _documentation(function)
    uses = command_uses().get(name, [])
    if not examples:
        examples = [uses[0].words] if uses else []
    usage = " ".join([program, *(option.words for option in arguments), "[OPTIONS]"])
    parts = [f"# {program}", description[0], f"```text\n{usage}\n```"]
    parts += [f"For example:\n\n```sh\n{chr(10).join(examples)}\n```"] if examples else []
    parts += description[1:]
    sections = {"Arguments": arguments} | {
        title: [option for option in others if option.section == title]
        for title in dict.fromkeys([GENERAL, *(option.section for option in others)])
    }
    for title, members in sections.items():
        if members:
            parts += [f"## {title}", *map(_entry, members)]
    pages = dict.fromkeys((use.title, use.page) for use in uses if use.page != COMMAND_OVERVIEW)
    if pages:
        near = [f"[{title}]({posixpath.relpath(page, f'{FOLDER}/commands')})" for title, page in pages]
        parts += ["## Pages that use it", ", ".join(near) + "."]
    return "\n\n".join(parts) + "\n"


def _entry(option: Option) -> str:
    """An option as an entry of a definition list."""
    text = _prose(option.text)
    if option.default:
        default = option.default if "`" in option.default else f"`{option.default}`"
        text += " (required)" if option.default == "required" else f" (default: {default})"
    others = [f"`--{alias}`" for alias, names in ALIASES.items() if option.name in names]
    text += f"; also {', '.join(others)}" if others else ""
    anchor = option.name if option.positional else f"--{option.name}"
    return f"`{option.words}`{{ #{anchor} }}\n:   {text.strip()}"


def _prose(text: str) -> str:
    """Plain text of a docstring as Markdown, with links to the pages of docs/ that it names."""
    escaped = re.sub(r"(`[^`]*`)|([<>*_])", lambda found: found[1] or f"\\{found[2]}", text.replace("``", "`"))
    return re.sub(r"\bdocs/([\w-]+\.md)", _page_link, escaped)


def _page_link(name: re.Match[str]) -> str:
    page = DOCS / name[1]
    return f"[{_title(page)}](../../{name[1]})" if page.is_file() else name[0]


def _title(page: Path) -> str:
    """The heading of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ")), page.name)


def _documentation(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The paragraphs of a command's docstring before ``Args:``, and the commands in it."""
    paragraphs, examples = [], []
    for paragraph in (inspect.getdoc(function) or "").partition("\nArgs:\n")[0].strip().split("\n\n"):
        if not paragraph.startswith("``"):
            paragraphs.append(_prose(" ".join(paragraph.split())))
            continue
        for line in paragraph.splitlines():
            commands = re.findall(r"``([^`]+)``", line)
            remark = re.sub(r"``[^`]+``|\(docs/\S+\)", "", line).strip().rstrip(".")
            shown = remark and len(commands) == 1 and not remark.startswith(",")
            examples += [*([f"# {remark}"] if shown else []), *commands]
    return paragraphs, examples


@dataclass(frozen=True)
class CommandUse:
    """A command on a line of a page."""

    words: str
    page: str
    title: str


@cache
def command_uses() -> dict[str, list[CommandUse]]:
    """The commands that pages of docs/ show on lines of their own, by name."""
    uses: dict[str, list[CommandUse]] = {}
    for path in sorted(DOCS.rglob("*.md")):
        page = path.relative_to(DOCS).as_posix()
        text = path.read_text(encoding="utf-8")
        title = _title(path)
        for line in text.replace("\\\n", " ").splitlines():
            words = " ".join(line.partition(" #")[0].split())
            if name := _command_name(words):
                uses.setdefault(name, []).append(CommandUse(words, page, title))
    return uses


def _command_name(words: str) -> str:
    """The command that a line calls; empty if it calls none."""
    program, *rest = words.split() or [""]
    if program != "isda" or not rest or rest[0] not in COMMANDS or "..." in rest:
        return ""
    if rest[0] in GROUPS:
        return f"{rest[0]}.{rest[1]}" if len(rest) > 1 and rest[1] in GROUPS[rest[0]] else ""
    return rest[0]


def overviews() -> dict[str, Overview]:
    """All overviews, by their place in docs/."""
    return python_overviews() | {COMMAND_OVERVIEW: command_overview()}


def with_generated_pages(menu: list[Any]) -> list[Any]:
    """The menu with the generated pages of each overview below it."""
    return [_with_pages(item) for item in menu]


def _with_pages(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    ((title, target),) = item.items()
    if isinstance(target, list):
        return {title: with_generated_pages(target)}
    if target == COMMAND_OVERVIEW:
        sections: dict[str, list[dict[str, str]]] = {name: [] for name in SECTIONS}
        for (section, _, _), page in zip(command_names(), command_overview().pages, strict=True):
            sections[section].append({page.title: page.uri})
        return {title: [target, *({name: members} for name, members in sections.items())]}
    if target in python_overviews():
        return {title: [target, *({page.title: page.uri} for page in python_overviews()[target].pages)]}
    return item
