"""Where runs are made: what is refused, runs whose workers die, plans as files, and runs in several processes."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from isda.lab.engine.executors.worker import plan_text, read_planned, user_code_arguments

from isda.lab.engine import RunConfig, Saving, find_task
from isda.lab.engine.comparison import run_planned
from isda.lab.engine.executors import MAX_RETRIES, PlannedRun, RunsFailed, Watcher, WorkerDied, _EpochCounter
from parabola import Here, begun, parabolas
from resumable_runs import RUNS
from resumable_runs import planned as resolved
from small_runs import SMALL_WORDS, isda

# -- workers that die --------------------------------------------------------------------------------------------------


def write_plan(planned, path, threads=None):
    path.write_text(plan_text(planned, threads))


class Mortal(Here):
    """Its worker dies so many times over the second run."""

    def __init__(self, deaths):
        self.deaths = deaths

    def submit(self, one):
        if one.config.seed == 1 and self.deaths:
            self.deaths -= 1
            dead: Future = Future()
            dead.set_exception(WorkerDied())
            return dead
        return super().submit(one)


class Told(Watcher):
    def __init__(self):
        self.ended = []

    def run_finished(self, folder, problem):
        self.ended.append((folder.name, problem))


def test_a_run_whose_worker_dies_is_given_to_another_and_none_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    told = Told()
    run_planned(parabolas(tmp_path), watcher=told, executor=Mortal(MAX_RETRIES))
    assert told.ended == [("seed-0", None), ("seed-1", None), ("seed-2", None)]
    assert len(begun(tmp_path)) == 3


def test_a_run_that_kills_every_worker_fails_and_the_others_are_made(tmp_path, monkeypatch):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    told = Told()
    with pytest.raises(RunsFailed, match=f"1 of 3 runs failed: .*seed-1: its worker died {MAX_RETRIES + 1} times"):
        run_planned(parabolas(tmp_path), watcher=told, executor=Mortal(MAX_RETRIES + 1))
    assert [name for name, problem in told.ended if problem is None] == ["seed-0", "seed-2"]
    assert len(begun(tmp_path)) == 2


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["everything", "mean-teacher+isda", "wgan"])
def test_a_plan_gives_back_the_run_that_was_written(name, tmp_path):
    config, _ = resolved(name, epochs=2)
    one = PlannedRun(
        task=type(find_task(RUNS[name][0])),
        config=config,
        folder=tmp_path / "run",
        data=None,
        data_root=tmp_path,
        device="cpu",
        saving=Saving(2.5, 7, 3),
        workers=3,
    )
    write_plan([replace(one, folder=tmp_path / "other"), one], tmp_path / "plan.json", threads=2)
    read, threads = read_planned(tmp_path / "plan.json", 1)
    assert threads == 2
    assert read.config.identity == one.config.identity
    assert json.dumps(asdict(read.config)) == json.dumps(asdict(one.config))
    assert replace(read, config=one.config) == one


def test_paths_of_a_plan_hold_wherever_it_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (one,) = parabolas(Path("runs"), 1)
    write_plan([replace(one, data_root=Path("data"))], tmp_path / "plan.json")
    monkeypatch.chdir("/")
    read, _ = read_planned(tmp_path / "plan.json", 0, ["parabola:Parabola"])
    assert (read.folder, read.data_root) == (tmp_path / "runs" / "seed-0", tmp_path / "data")


def test_code_of_the_users_own_is_imported_only_if_it_is_named(tmp_path):
    (one,) = parabolas(tmp_path, 1)
    assert user_code_arguments([one]) == ["--own", "parabola:Parabola"]
    odd: RunConfig = replace(one.config, settings={"method": "isda:covariance=nowhere.Model"})
    write_plan([one, replace(one, config=odd)], tmp_path / "plan.json")
    for number, name in ((0, "parabola:Parabola"), (1, "nowhere.Model")):
        named = [] if number == 0 else ["parabola:Parabola"]
        _, _, code = isda("run", tmp_path / "plan.json", number, *(["--own", *named] if named else []))
        assert f"uses user code; add --own {name} to import it" in code


@pytest.mark.parametrize(
    ("number", "change", "sentence"),
    [
        (3, {}, "number must be one of the 3 runs of plan.json, from 0, got 3"),
        (-1, {}, "number must be one of the 3 runs of plan.json, from 0, got -1"),
        (0, {"threads": 3}, "plan.json was changed after it was written"),
    ],
)
def test_a_plan_that_does_not_hold_the_run_is_refused(number, change, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_plan(parabolas(tmp_path), Path("plan.json"))
    Path("plan.json").write_text(json.dumps(json.loads(Path("plan.json").read_text()) | change))
    with pytest.raises(ValueError, match=sentence):
        read_planned(Path("plan.json"), number, ["parabola:Parabola"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "runs": [{}], "threads": null}'])
def test_a_file_that_is_no_plan_ends_in_one_sentence(content, tmp_path):
    (tmp_path / "plan.json").write_text(content)
    _, _, code = isda("run", tmp_path / "plan.json", "0")
    assert code.startswith(f"isda: {tmp_path / 'plan.json'} ")
    assert "\n" not in code


def test_what_went_wrong_can_be_written_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    (one,) = parabolas(tmp_path, 1)
    write_plan([replace(one, config=replace(one.config, method_options={"z": 40}))], tmp_path / "plan.json")
    words = ["run", tmp_path / "plan.json", 0, "--own", "parabola:Parabola", "--problem", tmp_path / "problem.json"]
    _, _, code = isda(*words)
    sentence, diverged = json.loads((tmp_path / "problem.json").read_text())
    assert code == f"isda: {one.folder}: {sentence}"
    assert "the loss became infinite or not a number" in sentence
    assert diverged


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on", "rya"], "on must be one of local, ray, slurm, got 'rya'; did you mean 'ray'?"),
        (["--on", "ray:"], "on must be one of local, ray, slurm or ray:ADDRESS, got 'ray:'"),
        (["--on", "slurm:here"], "on must be one of local, ray, slurm or ray:ADDRESS, got 'slurm:here'"),
        (["--on", "ray:nowhere"], "the address of a Ray cluster must be HOST:PORT or ray://HOST:PORT, got 'nowhere'"),
        (["--on", "slurm", "--jobs", "0"], "jobs must be from 1 to 10000, got 0"),
        (["--jobs", "2147483648"], "jobs must be from 1 to 10000, got 2147483648"),
        (["--processes-per-run", "0"], "processes_per_run must be from 1 to 1024, got 0"),
        (["--processes-per-run", "2147483648"], "processes_per_run must be from 1 to 1024, got 2147483648"),
        (["--cpus-per-run", "2"], "--on local does not support cpus_per_run, got 2"),
        (["--gpus-per-run", "1"], "--on local does not support gpus_per_run, got 1"),
        (["--on", "ray", "--gpus-per-run", "nan"], "gpus_per_run must be 0 or more, got nan"),
        (["--on", "ray", "--sbatch", "x=1"], "--on ray does not support sbatch, got ('x=1',)"),
        (
            ["--on", "slurm", "--sbatch", "a b"],
            "sbatch must be options of sbatch without dashes, such as partition=gpu",
        ),
        (["--on", "slurm", "--gpus-per-run", "0.5"], "gpus_per_run must be a whole number with --on slurm, got 0.5"),
    ],
)
def test_what_a_place_cannot_do_is_refused_before_a_folder_is_made(words, sentence, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    _, _, code = isda("compare", *SMALL_WORDS, "--out", tmp_path / "runs", *words)
    assert sentence in code
    assert not list(tmp_path.iterdir())


def test_a_search_cannot_be_an_array_job(tmp_path):
    _, _, code = isda("tune", *SMALL_WORDS, "--out", tmp_path / "runs", "--on", "slurm")
    assert "an array job cannot execute runs that depend on others" in code
    assert "with --jobs N or --on ray instead of --on slurm" in code
    assert not list(tmp_path.iterdir())


# -- several processes per run -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_in_two_processes_each_say_what_became_of_them(tmp_path):
    words = ["compare", *SMALL_WORDS, "--methods", "cross-entropy", "isda:lambda_0=1e19", "--seeds", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "isda", *words, "--out", "runs", "--processes-per-run", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    assert (
        "1 of 2 runs failed: runs/isda-lambda_0=1e+19/seed-0: the loss became infinite or not a number" in done.stderr
    )
    run = tmp_path / "runs" / "cross-entropy" / "seed-0"
    assert json.loads((run / "environment.json").read_text())["processes"] == 2
    assert (run / "result.json").is_file()


def test_progress_reads_only_what_was_added(tmp_path):
    counter = _EpochCounter()
    assert counter.count(tmp_path) == 0
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"epoch": 1}\n{"epo')
    assert counter.count(tmp_path) == 1
    # What was read before is not read again: not even when it is no longer there to be parsed.
    file.write_bytes(b"x" * 13 + b'{"epoch": 2}\n')
    assert counter.count(tmp_path) == 2
    file.write_text('{"epoch": 1}\n')
    assert counter.count(tmp_path) == 1
