"""A comparison that is told to stop, or loses a worker, ends: whatever its other workers are doing at that moment."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

# The first run fails in its first steps, so that its worker waits for work while the other one trains.
COMPARE = ["compare", "--labels", "80", "--batch-size", "20", "--width", "0.25", "--epochs", "100000", "--seeds", "1"]
COMPARE += ["--methods", "isda:lambda_0=1e19", "cross-entropy", "--jobs", "2", "--evaluate-every", "1000"]
# Seconds, far more than a loaded machine needs.
WAIT = 600


@pytest.fixture
def comparison(tmp_path):
    """A comparison with one worker at work and one without any."""
    command = [sys.executable, "-m", "isda", *COMPARE, "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("failed" in line for line in process.stderr)
    metrics = tmp_path / "runs" / "cross-entropy" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + WAIT
    while not metrics.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers = workers_of(process)
    yield process
    process.kill()
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def workers_of(process):
    """The worker processes of a comparison."""
    children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
    return [int(line) for line in children.stdout.split()]


def saved(folder):
    return any((folder / "runs" / "cross-entropy" / "seed-0" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_sigterm_ends_it_while_a_worker_is_idle(comparison, tmp_path):
    comparison.terminate()
    _, errors = comparison.communicate(timeout=WAIT)
    assert comparison.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; the current runs are saved; run the same command to resume" in errors
    assert saved(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_it_ends_when_either_worker_is_killed(comparison, which):
    """The one without work dies with the lock of the queue that the other will wait for once it has saved its run."""
    os.kill(workers_of(comparison)[which], signal.SIGKILL)
    _, errors = comparison.communicate(timeout=WAIT)
    assert comparison.returncode != 0
    assert "a worker process died (out of memory?); run the same command to resume" in errors


def test_the_workers_of_a_comparison_that_is_killed_save_their_runs_and_end(comparison, tmp_path):
    workers = workers_of(comparison)
    assert len(workers) == 2
    assert not saved(tmp_path)
    comparison.kill()
    comparison.wait()
    deadline = time.monotonic() + WAIT
    while any(map(alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert saved(tmp_path)


def alive(pid):
    """Whether a process runs; one that has ended may still wait for somebody to ask how."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
