"""A run that was interrupted, however and how often, ends in the very bits of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_run import killed_run

from isda.train import Saving, train

SCRIPT = Path(__file__).with_name("killed_run.py")
COMMAND = [
    *(sys.executable, "-m", "isda", "train", "--resume"),
    *("--labels", "100", "--batch-size", "20", "--width", "0.25", "--epochs", "24", "--checkpoint-steps", "7"),
]


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves behind but times: weights, statistics, averages, metrics."""
    newest = sorted(folder.glob("checkpoints/step-*"))[-1]
    files = [folder / "model.safetensors", *sorted(newest.glob("*.safetensors"))]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for record in (*metrics, result):
        record.pop("seconds")
    return {file.name: file.read_bytes() for file in files} | {"metrics": metrics, "result": result}


def check_kills(tmp_path: Path, kills: int, seed: int) -> None:
    config, data = killed_run(kills)
    train(config, data, tmp_path / "whole", saving=Saving(steps=1))
    killed = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "killed", str(kills), str(seed)], capture_output=True, text=True
    )
    assert killed.returncode == 0, killed.stderr
    assert int(killed.stdout) == kills
    whole, broken = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    assert set(whole) >= {"model.safetensors", "method.safetensors", "average.safetensors"}
    assert broken == whole


def test_survives_twenty_kills_at_random_moments_bit_for_bit(tmp_path):
    check_kills(tmp_path, kills=20, seed=0)


@pytest.mark.slow
def test_survives_two_hundred_kills_at_random_moments_bit_for_bit(tmp_path):
    check_kills(tmp_path, kills=200, seed=1)


def begun(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """The command in a process of its own, once it has trained for some epochs."""
    process = subprocess.Popen(
        [*COMMAND, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(3000):
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
    assert sorted(folder.glob("checkpoints/step-*"))[-1].name == f"step-{step:09d}"
    assert not (folder / "result.json").exists()
    assert finish(folder) == uninterrupted
