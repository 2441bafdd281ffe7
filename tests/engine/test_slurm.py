"""The array job that --on slurm writes, its elements run one by one as Slurm would, with a stand-in for scontrol."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from small_runs import isda

COMPARE = ["compare", "--network", "fast-cnn", "--width", "0.1", "--labels", "100", "--batch-size", "20"]
COMPARE += ["--epochs", "40", "--evaluate-every", "10", "--threads", "1", "--methods", "cross-entropy", "--seeds", "2"]
COMPARE += ["--out", "the runs", "--json", "table.json"]
RUNS = ("cross-entropy/seed-0", "cross-entropy/seed-1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(*words):
    """The script of a command, and what the command says."""
    out, _, code = isda(*COMPARE, "--on", "slurm", *words)
    assert code == 0
    return shlex.split(out.splitlines()[1])[1], out


@pytest.fixture
def element(folder):
    """Starts element N of the array of a script; scontrol, which Slurm would bring, writes down what it is told."""
    (folder / "bin").mkdir()
    (folder / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(folder))}/told\n')
    (folder / "bin" / "scontrol").chmod(0o755)

    def start(script, number):
        given = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7"}
        given |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        given |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(["bash", script], cwd="/", env=os.environ | given, **pipes)

    return start


def stop(process, metrics, number):
    """Send a signal to the script, and to nobody else, once its run has made an epoch."""
    while not (metrics.is_file() and metrics.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    return process.communicate(timeout=600)


def bits(run):
    """The weights and figures of a run, without the time that it took."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (run / "model.safetensors").read_bytes(), [{**line, "seconds": 0} for line in metrics]


def first_epoch(run):
    return (run / "metrics.jsonl").read_text().splitlines()[0]


def test_an_element_short_of_time_saves_is_queued_again_and_goes_on(folder, element):
    script, _ = written("--seeds", "1")
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    run = folder / "the runs" / RUNS[0]
    process = element(script, 0)
    _, err = stop(process, run / "metrics.jsonl", signal.SIGUSR1)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step" in err
    assert (folder / "told").read_text() == "requeue 7_0\n"
    before = first_epoch(run)
    assert isda("run", script.replace(".sh", ".json"), 0) == (f"{run} is finished\n", "", None)
    assert first_epoch(run) == before
    assert (
        isda("train", *COMPARE[1 : COMPARE.index("--methods")], "--method", "cross-entropy", "--out", "alone")[2]
        is None
    )
    assert bits(run) == bits(folder / "alone")


@pytest.mark.slow
def test_an_array_makes_the_runs_and_the_command_that_it_prints_the_table(folder, element):
    script, out = written("--jobs", "4", "--sbatch", "partition=gpu", "time=1:00:00")
    for number in (0, 1):
        process = element(script, number)
        out_of_run, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert out_of_run == f"{folder / 'the runs' / RUNS[number]} is finished\n"
    command = shlex.split(out.splitlines()[-1])
    assert command == ["isda", *COMPARE, "--jobs", "4"]
    stamps = [path.stat().st_mtime_ns for path in sorted((folder / "the runs").rglob("result.json"))]
    assert isda(*command[1:])[2] is None
    assert isda(*COMPARE, "--on", "slurm")[2] is None
    assert [path.stat().st_mtime_ns for path in sorted((folder / "the runs").rglob("result.json"))] == stamps
    table = json.loads((folder / "table.json").read_text())
    os.rename("the runs", "array")
    assert isda(*COMPARE)[2] is None
    assert json.loads((folder / "table.json").read_text()) == table
    for name in RUNS:
        assert bits(folder / "array" / name) == bits(folder / "the runs" / name)


@pytest.mark.slow
def test_an_element_that_is_cancelled_or_preempted_saves_and_leaves_the_rest_to_slurm(folder, element):
    script, _ = written()
    process = element(script, 1)
    _, err = stop(process, folder / "the runs" / RUNS[1] / "metrics.jsonl", signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step" in err
    assert not (folder / "told").exists()
    assert any((folder / "the runs" / RUNS[1]).glob("checkpoints/step-*"))


@pytest.mark.slow
def test_an_element_may_be_several_processes(folder, element):
    script, _ = written("--processes-per-run", "2")
    process = element(script, 0)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    environment = json.loads((folder / "the runs" / RUNS[0] / "environment.json").read_text())
    assert environment["processes"] == 2


def options(script):
    with open(script, encoding="utf-8") as file:
        return re.findall(r"^#SBATCH --(.*)$", file.read(), re.MULTILINE)


def test_the_script_asks_slurm_for_what_the_user_says(folder):
    script, _ = written("--jobs", "3", "--cpus-per-run", "4", "--gpus-per-run", "2", "--sbatch", "qos=low", "exclusive")
    found = options(script)
    assert "array=0-1%3" in found
    assert {"cpus-per-task=4", "gres=gpu:2", "requeue"} <= set(found)
    assert found[-2:] == ["qos=low", "exclusive"]
    assert f'output="{folder}/the runs/slurm/%A_%a.log"' in found


def test_a_plan_stays_what_it_was_whatever_else_is_asked_for(folder):
    """Jobs that wait must not find other runs under their numbers."""
    script, _ = written()
    plan = script.replace(".sh", ".json")
    with open(plan, "rb") as file:
        before = file.read()
    other, _ = written("--seeds", "1")
    assert other != script
    with open(plan, "rb") as file:
        assert file.read() == before
    assert written()[0] == script


def test_finished_runs_are_not_in_the_array(folder):
    script, _ = written("--seeds", "3", "--epochs", "1")
    assert "array=0-2" in options(script)
    assert isda("run", script.replace(".sh", ".json"), 1)[2] is None
    script, out = written("--seeds", "3", "--epochs", "1")
    assert "array=0,2" in options(script)
    assert "Submit the 2 of 3 runs" in out
