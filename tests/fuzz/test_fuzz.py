"""Random damage to run folders, options, tables and files of weights: no traceback, no hang, no silent success.

`make test` runs 240 cases of all kinds together, `make test-slow` 2,000 more with other seeds. By hand, of one kind or
of all: ``python tests/fuzz/fuzzer.py damage|options|tables|weights|all SEED CASES`` prints failures as they come, and
at the end a report as JSON.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isda.lab.cli.main import COMMANDS, GROUPS

SCRIPT = Path(__file__).with_name("fuzzer.py")
KINDS = ("damage", "options", "tables", "weights")
NAMES = {f"{name} {inner}".strip() for name in COMMANDS for inner in GROUPS.get(name, ("",))}
FEW, MANY = 240, 500


def fuzzed(seed, cases, seconds):
    """The report of so many cases of all kinds."""
    words = [sys.executable, SCRIPT, "all", str(seed), str(cases)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sum(report["cases"].values()) == cases
    return report


def check(report, kind):
    """No case of a kind has failed; where all of them are refused, or none is, the fuzzer tries nothing."""
    cases, succeeded = report["cases"][kind], report["succeeded"][kind]
    assert cases // 10 < succeeded < cases - cases // 10
    failed = [record for record in report["failures"] if record["kind"] == kind]
    told = [f"seed {one['seed']}, case {one['case']}: {one['description']}\n{one['problem']}" for one in failed]
    assert not told, "\n\n".join([f"{len(told)} of {report['cases'][kind]} cases of {kind} failed", *told[:5]])


@pytest.fixture(scope="module")
def few():
    """The report of the cases of `make test`."""
    return fuzzed(0, FEW, 600)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_absurd_or_hostile_gives_a_sentence_or_what_was_asked_for(few, kind):
    check(few, kind)


def test_every_command_is_tried(few):
    assert set(few["commands"]) == NAMES
    assert few["commands_succeeded"]["train"] > 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_five_hundred_cases(seed):
    """2,000 in all; for each seed more than two of every command, and more than ten trainings."""
    report = fuzzed(seed, MANY, 1200)
    for kind in KINDS:
        check(report, kind)
    assert {name for name in NAMES if report["commands"][name] > 2} == NAMES
    assert report["commands_succeeded"]["train"] > 10
