"""A run that was interrupted, however and how often, ends in the very bits of one that was not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resumable_runs import RUNS, check_kills, outcome

COMMAND = [
    *(sys.executable, "-m", "isda", "train", "--resume"),
    *("--labels", "100", "--batch-size", "20", "--width", "0.25", "--epochs", "24", "--checkpoint-steps", "7"),
]


def test_survives_twenty_kills_at_random_moments_bit_for_bit(tmp_path):
    check_kills(tmp_path, 0, {"everything": 20})
    parts = {part.partition("/")[0] for part in outcome(tmp_path / "0" / "whole")}
    assert parts >= {"model.safetensors", "model", "method", "average"}


@pytest.mark.slow
def test_every_task_and_method_survives_kills_at_random_moments_bit_for_bit(tmp_path):
    """Two kills of each run of tests/resumable_runs.py."""
    check_kills(tmp_path, 1, dict.fromkeys(RUNS, 2))
    parts = set(outcome(tmp_path / str(list(RUNS).index("segmentation")) / "whole"))
    assert "pictures/1-scene-011.png" in parts


def begun(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """The command in a process of its own, once it has trained for some epochs."""
    process = subprocess.Popen(
        [*COMMAND, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        if len(lines) >= epochs or process.poll() is not None:
            break
        time.sleep(0.02)
    return process


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    subprocess.run([*COMMAND, "--out", folder], check=True, capture_output=True)
    return outcome(folder)


def finish(folder: Path) -> dict[str, object]:
    """The rest of the run, taken up with its own settings."""
    arguments = ["train", "--out", str(folder), "--resume", "--checkpoint-steps", "7"]
    subprocess.run([sys.executable, "-m", "isda", *arguments], check=True, capture_output=True)
    return outcome(folder)


@pytest.mark.slow
def test_the_command_survives_a_kill(tmp_path, uninterrupted):
    process = begun(tmp_path / "run", epochs=3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert finish(tmp_path / "run") == uninterrupted


def test_sigterm_saves_the_step_at_hand_and_exits_cleanly(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    process = begun(folder, epochs=3)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    last = errors.strip().splitlines()[-1]
    assert "stopped by SIGTERM after step" in last
    assert "--resume" in last
    step = int(last.split("after step ")[1].split()[0])
    assert sorted(folder.glob("checkpoints/step-*"))[-1].stem == f"step-{step:09d}"
    assert not (folder / "result.json").exists()
    assert finish(folder) == uninterrupted
