"""Runs on a real Ray cluster: workers that are killed, commands that are stopped; tables and bits as on one machine."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from isda._utils.extras import install_command
from isda.lab.engine import Saving
from isda.lab.engine.comparison import run_planned
from isda.lab.engine.executors import ExecutorOptions, ExecutorRequest, Watcher, open_executor
from parabola import begun, parabolas
from resumable_runs import outcome
from small_runs import isda

pytest.importorskip("ray")

HERE = Path(__file__).parent
COMPARE = ["compare", "--network", "fast-cnn", "--width", "0.1", "--labels", "100", "--batch-size", "20"]
COMPARE += ["--epochs", "60", "--evaluate-every", "20", "--checkpoint-steps", "5", "--threads", "1"]
COMPARE += ["--methods", "cross-entropy", "isda:lambda_0=2", "--seeds", "1", "--out", "runs", "--json", "table.json"]
RUNS = ("cross-entropy/seed-0", "isda-lambda_0=2/seed-0")


@pytest.fixture(autouse=True, scope="module")
def _patient():
    """Clusters get longer to start than Ray's 30 seconds, which a busy machine may exceed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_gcs_server_port_wait_time_s", "300")
        yield


@pytest.fixture(scope="module")
def address():
    """Of a cluster with room for two runs, which wants a token of those who join."""
    folder = tempfile.mkdtemp(prefix="isda-ray-", dir="/tmp")  # a short path: sockets
    command = [sys.executable, str(HERE / "ray_head.py"), folder, "2"]
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for _ in range(5):  # Ray gives the processes of a node 30 seconds, whatever one says
        head = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if told := head.stdout.readline().strip():
            break
    assert told
    yield told
    head.stdin.close()
    head.wait(600)
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The comparison in one process of this machine."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert isda(*COMPARE)[2] is None
    return folder


@pytest.fixture
def start():
    """Starts a command in a folder, as a user does; what still runs after the test is ended."""
    started = []

    def begin(folder, *words):
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "isda", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def until(process, found):
    """What is found, as soon as it is, while the command goes on."""
    deadline = time.monotonic() + 600
    while not (result := found()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def cluster_folders():
    return set(Path("/tmp").glob("isda-ray-*"))


def assert_nothing_new(before):
    """No folder of a cluster is left; tests in other processes may have one for a while."""
    deadline = time.monotonic() + 600
    while left := cluster_folders() - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def under_way(folder):
    """Runs with a checkpoint and no result."""
    there = [folder / "runs" / name for name in RUNS]
    return [run for run in there if any(run.glob("checkpoints/step-*")) and not (run / "result.json").exists()]


def writer(run):
    """The process that writes a run folder."""
    return json.loads((run / ".lock").read_text())["process"]


def first_epochs(run):
    """What is known of the first epochs, with the time that they took: if they were made again it would differ."""
    return (run / "metrics.jsonl").read_text().splitlines()[:1]


def resumed(folder):
    return [name for name in RUNS if "resumed" in json.loads((folder / "runs" / name / "environment.json").read_text())]


def check_same(folder, local):
    """The table and every bit of every run are those of one machine."""
    assert outcomes(folder) == outcomes(local)
    assert table(folder) == table(local)


def outcomes(folder):
    return {name: outcome(folder / "runs" / name) for name in RUNS}


def table(folder):
    return json.loads((folder / "table.json").read_text())


class Killer(Watcher):
    """Kills the worker of a run once, when the run has a checkpoint."""

    def __init__(self, run):
        self.run, self.killed = run, False

    def progress(self, epochs, finished):
        if not self.killed and any(self.run.glob("checkpoints/step-*")):
            os.kill(writer(self.run), signal.SIGKILL)
            self.killed = True


def test_a_cluster_comes_and_goes_and_a_run_survives_its_worker(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    before = cluster_folders()
    runs = [replace(one, saving=Saving(steps=50)) for one in parabolas(tmp_path / "runs", 2, steps=2000)]
    killer = Killer(runs[0].folder)
    with open_executor(ExecutorRequest(options=ExecutorOptions(on="ray"), folder=tmp_path)) as executor:
        run_planned(runs, watcher=killer, executor=executor)
    assert killer.killed
    assert begun(tmp_path) == ["runs/seed-0 test", "runs/seed-0 test", "runs/seed-1 test"]
    # Every step counts once.
    assert [load_file(one.folder / "model.safetensors")["total"].item() for one in runs] == [2000, 2000]
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert_nothing_new(before)


@pytest.mark.slow
def test_a_killed_workers_run_goes_on_elsewhere_none_is_repeated_or_lost(address, local, start, tmp_path):
    process = start(tmp_path, *COMPARE, "--on", f"ray:{address}")
    (victim, *_) = until(process, lambda: under_way(tmp_path))
    before = until(process, lambda: first_epochs(victim))
    os.kill(writer(victim), signal.SIGKILL)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert resumed(tmp_path) == [victim.relative_to(tmp_path / "runs").as_posix()]
    assert first_epochs(victim) == before
    check_same(tmp_path, local)
    # Ray, which has a lot to say about dead workers, keeps quiet.
    assert [line.partition(":")[0] for line in err.splitlines()] == ["run 1/2", "run 2/2"]
    assert "ray" not in out.lower()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_comparison_that_is_stopped_saves_and_goes_on_with_the_same_command(address, local, start, tmp_path, number):
    process = start(tmp_path, *COMPARE, "--on", f"ray:{address}")
    (run, *_) = until(process, lambda: under_way(tmp_path))
    before = until(process, lambda: first_epochs(run))
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + number, err
    assert f"isda: stopped by {number.name}; the current runs are saved; run the same command to resume" in err
    there = [path.parent for path in (tmp_path / "runs").rglob("environment.json")]
    left = [one.relative_to(tmp_path / "runs").as_posix() for one in there if not (one / "result.json").exists()]
    assert run.relative_to(tmp_path / "runs").as_posix() in left
    assert all((one / ".lock").read_text() == "" for one in there), "a run goes on although all was stopped"
    process = start(tmp_path, *COMPARE, "--on", f"ray:{address}")
    assert process.wait(900) == 0
    assert sorted(resumed(tmp_path)) == sorted(left)
    assert first_epochs(run) == before
    check_same(tmp_path, local)


@pytest.mark.slow
def test_a_cluster_of_its_own_is_quiet_and_leaves_nothing_behind(local, start, tmp_path):
    before = cluster_folders()
    process = start(tmp_path, *COMPARE[:-1], "-", "--on", "ray", "--jobs", "2")
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert json.loads(out) == table(local)
    assert [line.partition(":")[0] for line in err.splitlines()] == ["run 1/2", "run 2/2"]
    assert outcomes(tmp_path) == outcomes(local)
    assert_nothing_new(before)
    assert subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout == ""


@pytest.mark.slow
def test_a_killed_worker_takes_the_processes_of_its_run_along_and_the_run_goes_on(address, start, tmp_path):
    words = [*COMPARE[: COMPARE.index("--methods")], "--methods", "cross-entropy", "--seeds", "1", "--out", "runs"]
    process = start(tmp_path, *words, "--on", f"ray:{address}", "--processes-per-run", "2")
    run = tmp_path / "runs" / RUNS[0]
    until(process, lambda: any(run.glob("checkpoints/step-*")))
    before = until(process, lambda: first_epochs(run))
    launcher = parent(writer(run))
    os.kill(parent(launcher), signal.SIGKILL)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    environment = json.loads((run / "environment.json").read_text())
    assert environment["processes"] == 2
    assert "resumed" in environment
    assert first_epochs(run) == before
    assert parent(launcher) is None


def parent(process):
    told = subprocess.run(["ps", "-o", "ppid=", "-p", str(process)], capture_output=True, text=True).stdout
    return int(told) if told.strip() else None


@pytest.mark.slow
def test_a_search_makes_its_rounds_on_a_cluster(address, start, tmp_path):
    words = ["tune", "--task", "parabola:Parabola", "--methods", "parabola", "worse", "--steps", "60", "--trials", "4"]
    words += ["--seeds", "2", "--out", "tuned", "--json", "table.json"]
    there, here = tmp_path / "there", tmp_path / "here"
    for folder, place in ((there, ["--on", f"ray:{address}"]), (here, ["--jobs", "2"])):
        process = start(folder, *words, *place)
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
    assert table(there) == table(here)


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    _, _, code = isda(*COMPARE, "--on", "ray:127.0.0.1:1")
    assert "isda: no Ray cluster answers at 127.0.0.1:1: " in code
    assert time.monotonic() - began < 60  # Ray itself would try for minutes
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python marks what cannot be imported
    monkeypatch.chdir(tmp_path)
    expected = f"isda: --on ray needs Ray, which is not installed: {install_command('ray')}"
    assert isda(*COMPARE, "--on", "ray")[2] == expected
    assert not list(tmp_path.iterdir())
