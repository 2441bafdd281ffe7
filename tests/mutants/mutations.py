"""Mutants: one operator, comparison, boolean operator or constant of a source file changed.

Left alone are docstrings and other texts, annotations, ``__all__``, imports and everything in a raise statement.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from packages import PACKAGES, SOURCE

_ARITHMETIC = {
    "+": ("-", "*"),
    "-": ("+", "*"),
    "*": ("/", "+"),
    "/": ("*", "-"),
    "//": ("*", "/"),
    "%": ("*", "//"),
    "**": ("*",),
    "<<": (">>",),
    ">>": ("<<",),
    "&": ("|",),
    "|": ("&",),
}
_COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
_BOOLEAN: dict[str, tuple[str, ...]] = {"and": ("or",), "or": ("and",)}
_IN_PLACE = {f"{old}=": tuple(f"{new}=" for new in changed) for old, changed in _ARITHMETIC.items()}
_Place = tuple[int, int]


class Mutant(NamedTuple):
    """One change of one file."""

    id: str
    package: str
    file: str
    """Below src/isda."""
    line: int
    text: str
    """The line, before."""
    change: str
    start: int
    end: int
    """The characters of the file that are replaced."""
    new: str
    lines: tuple[int, ...]
    """A test that runs none of these lines cannot notice; empty for what runs when the module is imported."""

    def applied_to(self, text: str) -> str:
        """The whole file, changed."""
        return text[: self.start] + self.new + text[self.end :]


def draw(count: int, seed: int) -> list[Mutant]:
    """Of every package its share: the mutants with the lowest digests of seed and id.

    That is random, and hardly another draw when some lines have been edited.
    """
    chosen: list[Mutant] = []
    for package in PACKAGES:
        everything = [mutant for file in package.source_files() for mutant in mutants_of(file, package.name)]
        everything.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.id}".encode()).digest())
        chosen += sorted(everything[: round(package.share * count)], key=lambda mutant: (mutant.file, mutant.start))
    return chosen


def mutants_of(path: Path, package: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix()
    file = _File(text)
    times: dict[tuple[str, ...], int] = {}
    for site in file.sites():
        for new in site.replacements:
            start, end = file.offset(site.start), file.offset(site.end)
            line, change = file.lines[site.start[0] - 1].strip(), f"{text[start:end].strip()} → {new or 'nothing'}"
            key = (name, site.function, line, change)
            times[key] = times.get(key, 0) + 1
            identity = hashlib.sha256("\n".join([*key, str(times[key])]).encode()).hexdigest()[:10]
            yield Mutant(identity, package, name, site.start[0], line, change, start, end, new, site.lines)


class _Site(NamedTuple):
    """A piece of a file and what can be put in its place."""

    start: _Place
    end: _Place
    replacements: tuple[str, ...]
    function: str
    lines: tuple[int, ...]


class _File:
    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self._tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, place: _Place) -> int:
        return self._starts[place[0] - 1] + place[1]

    def sites(self) -> Iterator[_Site]:
        yield from self._visit(self.tree, "", ())

    def _visit(self, node: ast.AST, function: str, statement: tuple[int, ...]) -> Iterator[_Site]:
        """``statement`` is empty for what runs when the module is imported."""
        if _is_left_alone(node):
            return
        inside = isinstance(node, ast.FunctionDef | ast.Lambda)
        if isinstance(node, ast.stmt) and statement:
            statement = (node.lineno,)
        for start, end, replacements in self._own(node):
            lines = {*statement, *range(node.lineno, node.end_lineno + 1)} if statement else ()  # type: ignore[attr-defined]
            yield _Site(start, end, replacements, function, tuple(sorted(lines)))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}"
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    within = (child.lineno,) if inside and name == "body" else statement  # type: ignore[attr-defined]
                    yield from self._visit(child, function, within)

    def _own(self, node: ast.AST) -> Iterator[tuple[_Place, _Place, tuple[str, ...]]]:
        """The changes of this node itself."""
        if isinstance(node, ast.BinOp):
            yield from self._between(node.left, node.right, _ARITHMETIC)
        elif isinstance(node, ast.AugAssign):
            yield from self._between(node.target, node.value, _IN_PLACE)
        elif isinstance(node, ast.BoolOp):
            for left, right in pairwise(node.values):
                yield from self._between(left, right, _BOOLEAN)
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, right in pairwise(operands):
                yield from self._between(left, right, _COMPARISONS)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            line, column = self._start(node)
            yield (line, column), (line, column + (3 if isinstance(node.op, ast.Not) else 1)), ("",)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._start(node), self._stop(node), (str(not node.value),)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield self._start(node), self._stop(node), (str(node.value + 1), f"({node.value - 1})")

    def _between(
        self, left: ast.expr, right: ast.expr, table: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[_Place, _Place, tuple[str, ...]]]:
        """The operator that stands between two expressions."""
        first, last = self._stop(left), self._start(right)
        words = [t for t in self._tokens if t.start >= first and t.end <= last and t.string not in "()\n"]
        words = [t for t in words if t.type in (tokenize.OP, tokenize.NAME)]
        operator = " ".join(token.string for token in words)
        if operator in table:
            yield words[0].start, words[-1].end, table[operator]

    def _start(self, node: ast.expr) -> _Place:
        return node.lineno, self._characters(node.lineno, node.col_offset)

    def _stop(self, node: ast.expr) -> _Place:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return node.end_lineno, self._characters(node.end_lineno, node.end_col_offset)

    def _characters(self, line: int, column: int) -> int:
        """The column in characters; ast counts bytes."""
        return len(self.lines[line - 1].encode()[:column].decode())


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)
