"""Help texts of commands: their options in sections with defaults, short or complete; and other names of options.

Everything is read from the signature of a command: its parameters and ``Args:``, and the fields of its dataclasses with
the docstrings below them. `isda.lab.engine.settings.Shown` has what the type of a field does not tell.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from isda.lab.engine.settings import RARE

ALIASES = {
    "optimizer": ("optimiser",),
    "learning-rate": ("lr",),
    "image-size": ("input-size", "crop", "min-size"),
    "val-size": ("held-out",),
    "warmup-epochs": ("warm-up",),
}
"""Names that people type, and the options that they stand for: the first that the command has."""
VALUE_ALIASES = {"precision": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}}
"""Values that people type, by option."""

HELP_WORDS = ("-h", "--help")
HELP_ALL = "--help-all"
GENERAL = "Options"
"""The section of options that belong to no other one."""
MAX_WIDTH = 110
"""Of help texts."""
COLUMN = 30
"""Where explanations begin, on terminals that are wide enough."""
FEW = 14
"""A command with at most this many options shows all of them."""


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument, of a command."""

    name: str
    """As typed, without the two dashes."""
    words: str
    """With its dashes and metavar."""
    text: str
    default: str
    section: str
    rare: bool
    """Whether only ``--help-all`` shows it."""
    positional: bool


def options_of(function: Callable[..., None]) -> list[Option]:
    """The options of a command, those of its dataclasses included."""
    return list(_options(function))


def _options(function: Callable[..., None]) -> Iterator[Option]:
    inner = inspect.unwrap(function)
    hints, texts = get_type_hints(inner, include_extras=True), _argument_texts(inspect.getdoc(function) or "")
    for name, parameter in inspect.signature(function).parameters.items():
        kind, marks = _kind_and_marks(hints[name])
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _field_options(kind)
            continue
        positional = tyro.conf.Positional in marks or parameter.kind is parameter.POSITIONAL_ONLY
        default = MISSING if parameter.default in (parameter.empty, tyro.MISSING) else parameter.default
        yield _option(name, hints[name], texts.get(name, ""), default, {}, positional)


def _field_options(kind: type) -> Iterator[Option]:
    hints, texts = get_type_hints(kind, include_extras=True), field_texts(kind)
    for f in fields(kind):
        yield _option(f.name, hints[f.name], texts.get(f.name, ""), _field_default(f), f.metadata, False)


def _field_default(f: Field[Any]) -> Any:
    if f.metadata.get("auto") is not None:
        return f.metadata["auto"]
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _option(name: str, hint: Any, text: str, default: Any, metadata: Mapping[str, Any], positional: bool) -> Option:
    kind, marks = _kind_and_marks(hint)
    given = {
        key: value
        for mark in marks
        for key in ("name", "metavar", "help")
        if isinstance(value := getattr(mark, key, None), str)
    }
    typed = given.get("name", name).replace("_", "-")
    metavar = metadata.get("metavar") or given.get("metavar") or _metavar(typed, kind, positional)
    if positional:
        words = metavar
    elif kind is bool:
        words = f"--no-{typed}" if default is True else f"--{typed}"
        text = _negated(text) if default is True else text
    else:
        words = f"--{typed} {metavar}"
    return Option(
        name=typed,
        words=words,
        text=_clause(given.get("help") or text),
        default="" if positional else metadata.get("default_text", _default_text(default, kind)),
        section=metadata.get("section", GENERAL),
        rare=metadata.get("rare", False) or RARE in marks,
        positional=positional,
    )


def _clause(text: str) -> str:
    """A text as one line that begins with a small letter, unless with an abbreviation, and ends without a full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if line[1:2].isupper() or line[1:2].isdigit() else line[:1].lower() + line[1:]


def _negated(text: str) -> str:
    return f"do not {_clause(text)}" if text else text


def _kind_and_marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and what annotates it; Python 3.10 makes an annotated parameter Optional whose default is None."""
    parts = [part for part in get_args(hint) if get_origin(part) is Annotated]
    if get_origin(hint) in (Union, UnionType) and parts:
        hint = parts[0]
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())


def _metavar(name: str, kind: Any, positional: bool) -> str:
    """What a word of a type stands for."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        parts = tuple(part for part in parts if part is not NoneType)
        bare = next((part for part in parts if hasattr(part, "bare")), None)
        words = [_metavar(name, part, positional) for part in parts]
        if bare is not None:
            return str(bare.metavar)
        return words[0] if len(words) == 1 else "|".join(word.strip("{}").replace(",", "|") for word in words)
    if origin is Literal:
        return "{" + ",".join(map(str, parts)) + "}"
    if origin is tuple and parts[-1] is Ellipsis:
        word = _metavar(_singular(name), parts[0], positional)
        return f"{word} ..." if positional else f"{word} [{word} ...]"
    if origin is tuple:
        return " ".join(_metavar(name, part, positional) for part in parts)
    if origin is dict:
        return "KEY VALUE [KEY VALUE ...]"
    if positional:
        return name.upper()
    return {int: "N", float: "X", bool: "{True,False}", Path: "PATH"}.get(kind, name.rpartition("-")[2].upper())


def _singular(name: str) -> str:
    return name.removesuffix("es" if name.endswith("sses") else "s")


def _default_text(default: Any, kind: Any) -> str:
    """The default of an option; nothing where it is None, empty or a flag, which the explanation tells."""
    if default is MISSING:
        return "required"
    if kind is bool or default is None or default in ((), {}, ""):
        return ""
    values = default if isinstance(default, tuple) else (default,)
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


@cache
def field_texts(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and its bases, from their source."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # a class without a source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, following in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                value = following.value if isinstance(following, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[statement.target.id] = value.value
    return texts


def _argument_texts(documentation: str) -> dict[str, str]:
    """The texts under ``Args:`` by the name of the parameter."""
    lines = documentation.partition("\nArgs:\n")[2].splitlines()
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            texts[name] = match[2]
        elif name:
            texts[name] += f" {line.strip()}"
    return texts


def help_text(function: Callable[..., None], program: str, everything: bool) -> str:
    """The help of a command.

    Args:
        function: the command.
        program: the words that call it.
        everything: show rare options, too.
    """
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    options = options_of(function)
    arguments = [option for option in options if option.positional]
    others = [option for option in options if not option.positional]
    # Settings have a method, and commands for several methods hardly use it.
    replaced = "method" if any(option.name == "methods" for option in others) else ""
    rare = [option for option in others if option.rare or option.name == replaced]
    hidden = [] if everything or len(others) <= FEW else rare
    usage = " ".join([program, *(option.words for option in arguments), "[OPTIONS]"])
    lines = [f"usage: {usage}", "", *_introduction(inspect.getdoc(function) or "", width)]
    sections = dict.fromkeys([GENERAL, *(option.section for option in others)])
    shown = {"Arguments": arguments} | {
        name: [option for option in others if option.section == name and option not in hidden] for name in sections
    }
    for name, members in shown.items():
        if members:
            lines += ["", name, *(line for option in members for line in _entry(option, width, everything))]
    if hidden:
        note = f"{len(hidden)} further options: {program} {HELP_ALL}"
        lines += ["", *textwrap.wrap(note, width, break_on_hyphens=False)]
    return "\n".join(lines)


def _introduction(documentation: str, width: int) -> Iterator[str]:
    """The summary, examples and paragraphs of a docstring, without its ``Args:``."""
    for paragraph in documentation.partition("\nArgs:\n")[0].strip().split("\n\n"):
        examples = [line for line in paragraph.splitlines() if line.startswith("``")]
        if examples:
            yield from ("", *(f"  {line.replace('``', '')}" for line in paragraph.splitlines()))
        else:
            if paragraph is not documentation and not documentation.startswith(paragraph):
                yield ""
            yield from textwrap.wrap(" ".join(paragraph.replace("``", "").split()), width)


def _entry(option: Option, width: int, everything: bool) -> Iterator[str]:
    """The lines of an option."""
    column = COLUMN if width >= 2 * COLUMN else 6
    text = option.text
    if option.default:
        text += " (required)" if option.default == "required" else f" (default: {option.default})"
    if everything and (others := [alias for alias, names in ALIASES.items() if option.name in names]):
        text += f" [also {' '.join(f'--{alias}' for alias in others)}]"
    explained = textwrap.wrap(text.strip(), max(20, width - column), break_on_hyphens=False)
    head = f"  {option.words}"
    if len(head) + 2 <= column and explained:
        yield f"{head:{column}}{explained.pop(0)}"
    else:
        yield from textwrap.wrap(head, width, subsequent_indent="      ", break_on_hyphens=False)
    yield from (" " * column + line for line in explained)


def without_aliases(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """The words of a command with its own names of options and values.

    Example:
        >>> def command(*, lr: float = 0.1, precision: str = "float32") -> None: ...
        >>> without_aliases(["--learning-rate", "1", "--precision=bf16"], options_of(command))
        ['--lr', '1', '--precision=bfloat16']
    """
    known = {option.name for option in options}
    kept: list[str] = []
    last = ""
    for word in words:
        if not word.startswith("--"):
            kept.append(VALUE_ALIASES.get(last, {}).get(word, word) if last in known else word)
            continue
        name, equals, value = word[2:].partition("=")
        last = name.replace("_", "-")
        if last not in known:
            last = next((option for option in ALIASES.get(last, ()) if option in known), last)
            name = last if last in known else name
        kept.append(f"--{name}{equals}{VALUE_ALIASES.get(last, {}).get(value, value)}")
    return kept
