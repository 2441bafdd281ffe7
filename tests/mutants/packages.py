"""The parts of the library whose code is mutated, and the tests that have to notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "isda"
_STATISTICS = ("tests/functional", "tests/covariance")


class Package(NamedTuple):
    """A part of the library that is tested on its own."""

    name: str
    share: float
    """Of the mutants that are drawn. Small parts have more than their size: what they guard is not small."""
    sources: tuple[str, ...]
    """Files, as patterns below src/isda."""
    tests: tuple[str, ...]
    """Folders and files of tests whose lines can be recorded."""
    processes: tuple[str, ...] = ()
    """Test files that work in processes of their own, whose lines nobody sees."""

    def source_files(self) -> list[Path]:
        """The files to be mutated."""
        return sorted(path for pattern in self.sources for path in SOURCE.glob(pattern))

    def test_files(self) -> list[str]:
        """The test files, without those of ``processes``, relative to the root."""
        paths = [ROOT / test for test in self.tests]
        files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.glob("test_*.py")))]
        names = (file.relative_to(ROOT).as_posix() for file in files)
        return [name for name in names if name not in self.processes]


PACKAGES = (
    Package("functional", 0.2, ("functional/*.py",), _STATISTICS),
    Package("covariance", 0.15, ("covariance/*.py",), _STATISTICS, ("tests/distributed/test_distributed.py",)),
    Package("losses", 0.12, ("losses/*.py", "losses/rivals/*.py"), ("tests/losses", "tests/attach")),
    Package("attach", 0.12, ("attach/*.py",), ("tests/attach", "tests/losses")),
    Package("estimator", 0.15, ("estimator/*.py",), ("tests/estimator",)),
    Package("statistics", 0.06, ("report/statistics.py"), ("tests/report",)),
    Package("semi", 0.1, ("semi/*.py",), ("tests/semi",), ("tests/semi/test_semi_distributed.py",)),
    Package(
        "checkpoints",
        0.05,
        ("engine/checkpoint.py",),
        ("tests/engine/test_checkpoints.py", "tests/engine/test_saving.py"),
        ("tests/engine/test_failures.py", "tests/engine/test_many_processes.py"),
    ),
    Package(
        "splits",
        0.05,
        ("data/splits.py", "tasks/common/data.py", "tasks/semi_supervised/data.py"),
        (
            "tests/data/test_splits.py",
            "tests/tasks/classification/test_split.py",
            "tests/tasks/semi_supervised/test_semi_labels.py",
            "tests/tasks/semi_supervised/test_semi_held_out.py",
        ),
    ),
)
