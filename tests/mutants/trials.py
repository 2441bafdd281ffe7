"""Does a test notice a mutant? Those that run its line are asked, the nearest and fastest first."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from children import run_pytest
from line_map import Lines, digest
from mutations import Mutant
from packages import PACKAGES, ROOT, SOURCE

_AT_LEAST, _TIMES = 90.0, 15.0
"""Seconds that a trial has in any case, and how many times what its tests take without a mutant beside them."""

_SECONDS, _CASES = 5.0, 8
"""Where the cases of a parametrised test take more seconds than this, so many of them are asked."""


class Trial(NamedTuple):
    """What came of a mutant."""

    id: str
    outcome: str
    """caught, timeout or survived."""
    by: str
    """The test that failed."""
    tests: int
    """How many were chosen."""
    seconds: float
    of: str
    """Digest of the mutated file and of the tests that it depends on: while it is the same, so is the outcome."""

    @property
    def is_caught(self) -> bool:
        """A test that no longer ends has noticed as well."""
        return self.outcome != "survived"


class ChosenTests:
    """A plugin of pytest: runs chosen tests in a given order until one fails."""

    def __init__(self, tests: list[str] | None) -> None:
        self.failed = ""
        self._order = None if tests is None else {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen ones."""
        order = self._order
        if order is not None:
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported fails all of its tests."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (on import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure is enough."""
        if report.failed and not self.failed:
            self.failed = report.nodeid


@contextmanager
def mutated(mutant: Mutant, copy: Path) -> Iterator[None]:
    """A mutant in a copy of the sources, while the block runs."""
    file = copy / "isda" / mutant.file
    text = file.read_text(encoding="utf-8")
    try:
        _forget_compiled(file)
        file.write_text(mutant.applied_to(text), encoding="utf-8")
        yield
    finally:
        _forget_compiled(file)
        file.write_text(text, encoding="utf-8")


def _forget_compiled(file: Path) -> None:
    """Two mutants of one size within a second have the same compiled module for Python."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def copy_sources(folder: Path) -> Path:
    """The sources, to be mutated there."""
    return Path(shutil.copytree(SOURCE.parent, folder / "src"))


def try_mutant(mutant: Mutant, lines: Lines, copy: Path) -> Trial:
    """Run the tests of the mutant's package that can notice it."""
    (package,) = (package for package in PACKAGES if package.name == mutant.package)
    files = package.test_files()
    chosen = tests_for(mutant, {test: facts for test, facts in lines.items() if test.split("::")[0] in files})
    started = time.monotonic()
    outcome, by = "survived", ""
    with mutated(mutant, copy):
        for tests in (_first_few(chosen), chosen):
            if outcome == "survived" and tests:
                expected = sum(lines[test]["seconds"] for test in tests)
                outcome, by = _run(tests, copy, _AT_LEAST + _TIMES * expected)
        if outcome == "survived" and package.processes:
            outcome, by = _run(list(package.processes), copy, 900, whole_files=True)
    seconds = round(time.monotonic() - started, 1)
    of = depends_on(mutant, by if outcome == "caught" else "", copy)
    return Trial(mutant.id, outcome, by, len(chosen), seconds, of)


def depends_on(mutant: Mutant, by: str, copy: Path) -> str:
    """Digest of what the outcome depends on: the one test file that caught it, or else all of the package."""
    (package,) = (package for package in PACKAGES if package.name == mutant.package)
    tests = [by.split("::")[0]] if by else [*package.test_files(), *package.processes]
    return digest([copy / "isda" / mutant.file, *(ROOT / test for test in tests if (ROOT / test).is_file())])


def tests_for(mutant: Mutant, lines: Lines) -> list[str]:
    """Tests that run a line of the mutant, or all if that is run on import: what it makes can be read without it.

    Those in files of its name come first, then those that run its file, the fastest before the others. Where the cases
    of one test take long, a few have to do: what one of two hundred would have noticed counts as not noticed, but
    mutants that none notices would take minutes each.
    """
    name = mutant.file.removesuffix(".py").split("/")[-1]

    def can_notice(facts: dict[str, Any]) -> bool:
        seen = facts["lines"].get(mutant.file, ())
        return not mutant.lines or seen is None or bool(set(mutant.lines) & set(seen))

    def distance(test: str) -> tuple[bool, bool, float]:
        return name not in test.split("::")[0], mutant.file not in lines[test]["lines"], lines[test]["seconds"]

    tests = sorted((test for test, facts in lines.items() if can_notice(facts)), key=distance)
    cases: dict[str, list[str]] = {}
    for test in tests:
        cases.setdefault(test.split("[")[0], []).append(test)
    asked: set[str] = set()
    for same in cases.values():
        long = sum(lines[test]["seconds"] for test in same) > _SECONDS
        asked.update(same[:: math.ceil(len(same) / _CASES)] if long else same)
    return [test for test in tests if test in asked]


def _first_few(tests: list[str]) -> list[str]:
    """The fastest tests of two files: most mutants go no further, and other files need not be imported."""
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))[:2]
    return [test for test in tests if test.split("::")[0] in files][:40]


def _run(tests: list[str], copy: Path, timeout: float, *, whole_files: bool = False) -> tuple[str, str]:
    plugin = ChosenTests(None if whole_files else tests)
    files = sorted({test.split("::")[0] for test in tests})
    try:
        failed = run_pytest(files, copy, plugin, lambda: plugin.failed, timeout, stop_at_failure=True)
    except TimeoutError:
        return "timeout", ""
    except ChildProcessError:
        return "caught", "the process of the tests ended"
    return ("caught", failed) if failed else ("survived", "")
