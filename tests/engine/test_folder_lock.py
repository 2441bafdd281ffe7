"""One writer per run folder, checkpoints that know their run, and runs that outlive their reader and their parent."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isda.lab.engine.run_folder import FolderInUse, folder_lock
from isda.lab.train import Hook, Saving, train
from small_runs import SMALL_WORDS, digits, small_config, train_small

COMMAND = [sys.executable, "-m", "isda"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
WRITERS = Path(__file__).with_name("concurrent_writers.py")
HOLDER = "import sys, time; from pathlib import Path; from isda.lab.engine.run_folder import folder_lock\n"
HOLDER += "with folder_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"


class Cut(Exception):
    """Stands for a power failure."""


def interrupted(folder, **changes):
    class Stop(Hook):
        def step(self, step):
            if step == 8:
                raise Cut

    with pytest.raises(Cut):
        train(small_config(**changes), digits(), folder, saving=Saving(steps=3), hooks=[Stop()])


@pytest.fixture
def holder(tmp_path):
    """Another process that holds tmp_path / "run"."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_writer_is_told_who_has_the_folder(holder, tmp_path):
    _, _, code = train_small(tmp_path / "run")
    assert f"run is being written by process {holder.pid} on " in code
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock"]


def test_the_lock_dies_with_its_owner(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with folder_lock(tmp_path / "run"):
        pass


def test_one_process_cannot_hold_a_folder_twice(tmp_path):
    with folder_lock(tmp_path), pytest.raises(FolderInUse, match=f"process {os.getpid()}"), folder_lock(tmp_path):
        pass


@pytest.mark.slow
def test_of_three_commands_one_wins_and_nothing_is_lost(tmp_path, finished_run):
    words = [*COMMAND, "train", *SMALL_WORDS, "--out", "run", "--resume", "--checkpoint-steps", "1"]
    started = [
        subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ends = [process.communicate(timeout=600)[1].decode() for process in started]
    assert [process.returncode for process in started].count(0) >= 1
    assert all(
        "is being written by process" in end for process, end in zip(started, ends, strict=True) if process.returncode
    )
    names = ("model.safetensors", "config.json")
    assert all((tmp_path / "run" / name).read_bytes() == (finished_run / name).read_bytes() for name in names)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_of_three_writers_one_wins_twenty_times(tmp_path):
    """20 rounds: nobody fails but for the folder being held, those are told by whom, and the bits are those of one."""
    writers = 3
    words = [sys.executable, WRITERS, tmp_path, str(writers), "20", "0"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) == 20
    refused = 0
    for number, end in enumerate(rounds):
        assert end["statuses"] == [0] * writers, (number, end)
        assert end["equal"], (number, end)
        losers = [told for told in end["told"] if told != "finished"]
        assert len(losers) < writers, (number, end)
        assert all(any(f"written by process {one} on " in told for one in end["processes"]) for told in losers), end
        refused += len(losers)
    assert refused > 4


def test_checkpoints_are_not_adopted_by_another_run(tmp_path):
    interrupted(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="is of another run; choose another folder"):
        train(small_config(seed=5), digits(), tmp_path)


def test_a_lost_configuration_does_not_stop_the_run_it_belongs_to(tmp_path, finished_run):
    interrupted(tmp_path)
    (tmp_path / "config.json").unlink()
    train(small_config(), digits(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(""),
        lambda path: path.write_text("[]\nnonsense\n"),
        lambda path: path.write_bytes(path.read_bytes() * 3),
    ],
    ids=["lost", "empty", "nonsense", "repeated"],
)
def test_damaged_metrics_are_written_again(damage, tmp_path, finished_run):
    interrupted(tmp_path)
    damage(tmp_path / "metrics.jsonl")
    result = train(small_config(), digits(), tmp_path)
    kept, whole = (
        [json.loads(line) | {"seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path, finished_run)
    )
    assert kept == whole
    assert result | {"seconds": 0} == json.loads((finished_run / "result.json").read_text()) | {"seconds": 0}


def test_training_goes_on_when_nobody_reads(tmp_path):
    words = shlex.join([*COMMAND, "train", *SMALL_WORDS, "--out", "run"])
    done = subprocess.run(f"{words} | head -1", shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True)
    assert done.stdout.decode().startswith("isda on digits")
    deadline = time.monotonic() + 600
    while not (tmp_path / "run" / "result.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "run" / "result.json").exists()


def test_ranks_stop_when_their_launcher_is_killed(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "isda"]
    words = [*launcher, "train", *SMALL_WORDS, "--epochs", "100000", "--out", "run", "--checkpoint-steps", "16"]
    process = subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: list(tmp_path.glob("run/checkpoints/step-*")), 600)
        process.kill()
        # The pipe closes when the last rank has ended.
        process.communicate(timeout=600)
        with folder_lock(tmp_path / "run"):
            pass
    finally:
        subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)


def wait_for(ready, seconds):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    Path(tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match=r"the run folder .*file/run could not be created"),
        folder_lock(tmp_path / "file" / "run"),
    ):
        pass
