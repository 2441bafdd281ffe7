"""Many runs: by processes, by torchrun, by Ray and by submitit; each trains the same bits."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from safetensors.torch import load_file

from isda.lab.engine import NonFiniteLoss
from isda.lab.engine.comparison import run_planned
from isda.lab.engine.executors.clusters import slurm_executor
from isda.lab.engine.executors.runs import (
    Execution,
    ExecutorOptions,
    PlannedRun,
    RunsFailed,
    Watcher,
    execute,
    open_execution,
)
from isda.lab.engine.task import find_task
from parabola import HERE, parabolas
from small_runs import isda, small_config


@pytest.fixture(autouse=True)
def _one_thread_and_our_modules(tmp_path, monkeypatch):
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


class Told(Watcher):
    def __init__(self):
        self.ended = []

    def run_finished(self, folder, problem):
        self.ended.append((folder.name, problem))


def trained(folder, seeds=(0, 1), **changes):
    return [
        PlannedRun(
            task=type(find_task("classification")),
            config=small_config(method="isda", seed=seed, **changes),
            folder=folder / f"seed-{seed}",
            data=None,
            device="cpu",
        )
        for seed in seeds
    ]


def weights(folder):
    return {path.parent.name: load_file(path) for path in folder.glob("*/model.safetensors")}


def same(one, two):
    return one.keys() == two.keys() and all(
        torch.equal(value, two[run][name]) for run in one for name, value in one[run].items()
    )


def test_two_worker_processes_train_what_one_does(tmp_path):
    run_planned(trained(tmp_path / "here"), execution=HERE)
    told = Told()
    run_planned(trained(tmp_path / "there"), jobs=2, watcher=told)
    assert same(weights(tmp_path / "here"), weights(tmp_path / "there"))
    assert sorted(told.ended) == [("seed-0", None), ("seed-1", None)]
    # Finished runs are not repeated.
    before = (tmp_path / "there" / "seed-0" / "result.json").stat().st_mtime_ns
    run_planned(trained(tmp_path / "there"), jobs=2)
    assert (tmp_path / "there" / "seed-0" / "result.json").stat().st_mtime_ns == before


def test_a_run_that_fails_is_named_and_the_others_are_made(tmp_path):
    runs = parabolas(tmp_path)
    runs[1].config.method_options["z"] = 40
    with pytest.raises(RunsFailed, match=r"1 of 3 runs failed: .*seed-1: the loss became infinite") as failed:
        run_planned(runs, execution=HERE)
    assert [problem.diverged for problem in failed.value.problems.values()] == [True]
    assert [(run.folder / "result.json").is_file() for run in runs] == [True, False, True]
    assert NonFiniteLoss.__name__ in (runs[1].folder / "error.txt").read_text()


def test_two_processes_of_torchrun_train_a_run(tmp_path):
    run_planned(trained(tmp_path / "one", seeds=[0], precision="float64"), execution=HERE)
    with open_execution(ExecutorOptions(processes_per_run=2), tmp_path) as execution:
        run_planned(trained(tmp_path / "two", seeds=[0], precision="float64"), execution=execution)
    one, two = weights(tmp_path / "one")["seed-0"], weights(tmp_path / "two")["seed-0"]
    assert one.keys() == two.keys()
    assert (tmp_path / "two" / "seed-0" / "environment.json").read_text().count('"processes": 2') == 1


def test_jobs_of_submitit_train_the_same(tmp_path):
    pytest.importorskip("submitit")
    run_planned(trained(tmp_path / "here"), execution=HERE)
    with slurm_executor(tmp_path / "slurm", 1, 0, {}, cluster="local") as executor:
        run_planned(trained(tmp_path / "there"), execution=Execution(executor, None, execute))
    assert same(weights(tmp_path / "here"), weights(tmp_path / "there"))


@pytest.mark.slow
def test_tasks_of_ray_train_the_same(tmp_path):
    pytest.importorskip("ray")
    run_planned(trained(tmp_path / "here"), execution=HERE)
    with open_execution(ExecutorOptions(on="ray", jobs=2), tmp_path) as execution:
        run_planned(trained(tmp_path / "there"), execution=execution)
    assert same(weights(tmp_path / "here"), weights(tmp_path / "there"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--on", "rya"], "did you mean 'ray'?"), (["--jobs", "0"], "jobs must be from 1 to 10000, got 0")],
)
def test_an_executor_that_does_not_exist_is_refused_before_a_folder_is_made(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, err, code = isda("compare", "--seeds", "1", *words)
    assert sentence in f"{code} {err}"
    assert not (tmp_path / "runs").exists()
