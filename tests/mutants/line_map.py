"""Which tests run which lines of the mutated files, and how long they take: kept until a file changes."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from children import run_pytest
from packages import PACKAGES, ROOT, SOURCE

Lines = dict[str, dict[str, Any]]
"""Test -> {"seconds": ..., "lines": {file: [line, ...] or None}}."""


def digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


class LineRecorder:
    """A plugin of pytest: what each test runs of some files."""

    def __init__(self, files: list[Path]) -> None:
        self.tests: Lines = {}
        self.failed: list[str] = []
        self._names = {str(file): file.relative_to(SOURCE).as_posix() for file in files}
        self._seen: dict[str, set[int]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test, its fixtures included."""
        self._seen = {name: set() for name in self._names.values()}
        started = time.perf_counter()
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            lines = {name: sorted(seen) for name, seen in self._seen.items() if seen}
            self.tests[item.nodeid] = {"seconds": time.perf_counter() - started, "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Mutants can be judged only by tests that pass without them."""
        if report.failed:
            self.failed.append(report.nodeid)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = self._names.get(frame.f_code.co_filename)
        if name is None:
            return None
        seen = self._seen[name]

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return step

        return step


def recorded_lines(path: Path, packages: set[str]) -> Lines:
    """What every test of some packages runs, of which only test files that changed are run again.

    Of a source file that has changed since, it is known whether a test runs it, not which lines: None stands for them.
    """
    sources = sorted({file for package in PACKAGES for file in package.source_files()})
    code = {file.relative_to(SOURCE).as_posix(): digest([file]) for file in sources}
    files = sorted({file for package in PACKAGES if package.name in packages for file in package.test_files()})
    wanted = {file: digest([ROOT / file]) for file in files}
    kept = json.loads(path.read_text()) if path.is_file() else {}
    stale = [file for file in files if file not in kept or kept[file]["of"] != wanted[file]]
    if stale:
        print(f"recording which lines {len(stale)} test files run", file=sys.stderr, flush=True)
        plugin = LineRecorder(sources)
        found, failed = run_pytest(stale, SOURCE.parent, plugin, lambda: [plugin.tests, plugin.failed], timeout=7200)
        if failed:
            raise SystemExit(f"these tests fail without any mutant: {', '.join(failed)}")
        for file in stale:
            tests = {test: facts for test, facts in found.items() if test.split("::")[0] == file}
            kept[file] = {"of": wanted[file], "code": code, "tests": tests}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept))
    result: Lines = {}
    for file in files:
        for test, facts in kept[file]["tests"].items():
            same = {name: code.get(name) == kept[file]["code"].get(name) for name in facts["lines"]}
            known = {name: lines if same[name] else None for name, lines in facts["lines"].items()}
            result[test] = {"seconds": facts["seconds"], "lines": known}
    return result
