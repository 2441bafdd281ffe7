"""Random damage to run folders and random options: no traceback, no hang, no silently different result.

`make test` runs 50 cases of damage and 40 of options, `make test-slow` 3,000 and 2,000 more with other seeds. To run
one kind by hand: ``python tests/fuzz/fuzzer.py damage SEED CASES``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzzer.py")


def check(kind, seed, cases, seconds):
    done = subprocess.run(
        [sys.executable, SCRIPT, kind, str(seed), str(cases)], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cases"] == cases
    told = [f"seed {seed}, case {one['case']}: {one['told']}\n{one['problem']}" for one in report["failures"]]
    assert not told, "\n\n".join([f"{len(told)} of {cases} cases of {kind} failed", *told[:5]])
    return report


def test_damaged_run_folders_give_a_sentence_or_the_same_result():
    """50 cases: a random file of a random run folder, damaged at random, and then a random command."""
    report = check("damage", 0, 50, 600)
    assert min(report["commands"][command] for command in ("train", "evaluate", "predict", "report", "compare")) > 0


def test_random_options_give_a_sentence_or_the_run_that_was_asked_for():
    """40 cases: a random command with random options, valid, on the border and absurd."""
    report = check("options", 0, 40, 600)
    assert report["commands"]["train"] > 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_damaged_run_folders(seed):
    """1,000 further cases for each seed."""
    check("damage", seed, 1000, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_option_sets(seed):
    """1,000 further cases for each seed."""
    check("options", seed, 1000, 3000)
