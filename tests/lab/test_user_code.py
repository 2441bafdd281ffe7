"""A method, a covariance and a task of a user's own, in a folder of their own, through the commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isda.lab.engine import find_task
from isda.lab.engine import task as registry
from isda.lab.engine.comparison import Planner
from isda.lab.engine.search import SearchOptions, make_candidates
from isda.lab.train import Settings
from small_runs import isda

ROOT = Path(__file__).parents[2]
FILES = [*(ROOT / "tests" / "lab" / "user_code").glob("*.py"), ROOT / "examples" / "covariance_model.py"]
DIGITS = ["--data", "digits", "--labels", "100", "--batch-size", "20", "--width", "0.25", "--epochs", "2"]
SINE = ["--task", "sine:Sine", "--points", "60", "--epochs", "4"]
STOP = """
from isda.lab.engine import Hook

class Stop(Hook):
    def step(self, step):
        if step == 7:
            raise OSError("the power failed")
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with the files of a user, from which commands are run."""
    for file in FILES:
        shutil.copy(file, tmp_path)
    (tmp_path / "stopping.py").write_text(STOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    registry._registered.pop("sine", None)
    for name in ("focal", "sine", "covariance_model", "stopping"):
        sys.modules.pop(name, None)


CASES = {
    "method": (DIGITS, ["--method", "focal.Focal:gamma=1"]),
    "covariance": (DIGITS, ["--method", "isda:covariance=covariance_model.BandedCovariance,lambda_0=2"]),
    "task": (SINE, ["--method", "huber"]),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_in_the_same_bits(case, elsewhere):
    settings, method = CASES[case]
    _, _, code = isda("train", *settings, *method, "--out", "whole")
    assert code is None
    _, _, code = isda("train", *settings, *method, "--out", "cut", "--hook", "stopping:Stop", "--checkpoint-steps", 2)
    assert code == "isda: the power failed"
    _, _, code = isda("train", "--out", "cut", "--resume", *settings[: 2 if case == "task" else 0], *method)
    assert code is None
    whole, cut = (Path(name, "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("case", ["method", "covariance"])
def test_a_run_folder_alone_does_not_import_code(case, elsewhere):
    settings, method = CASES[case]
    isda("train", *settings, *method, "--out", "cut", "--hook", "stopping:Stop", "--checkpoint-steps", 2)
    _, _, code = isda("train", "--out", "cut", "--resume")
    assert f"name it again to import it: --method {method[1]}" in code


def test_methods_of_ones_own_are_compared_with_ours(elsewhere):
    methods = ["cross-entropy", "focal.Focal:gamma=1", "focal.Focal:gamma=2"]
    out, _, code = isda("compare", *DIGITS, "--methods", *methods, "--seeds", 1, "--out", "runs", "--json", "-")
    assert code is None
    (comparison,) = json.loads(out)
    assert [method["label"] for method in comparison["methods"]] == [
        "cross-entropy",
        "focal.Focal gamma=1",
        "focal.Focal gamma=2",
    ]


def test_a_method_of_ones_own_is_tuned_by_the_grid_that_it_declares(elsewhere):
    planner = Planner(task_of=lambda _: find_task("classification"), device="cpu")
    settings = Settings(data="digits", labels=100, batch_size=20, width=0.25, epochs=2)
    (found,) = make_candidates(settings, ["focal.Focal"], [], SearchOptions(), planner)
    assert [(one.name, one.values) for one in found.searched] == [("gamma", (0.5, 1.0, 2.0, 5.0))]


def test_a_task_of_ones_own_without_held_out_data_is_not_tuned(elsewhere):
    _, _, code = isda("tune", *SINE, "--method", "huber", "--search", "lr=0.01,0.1")
    assert code.startswith("isda: task sine has no held-out data to choose settings by")


def test_a_task_of_ones_own_is_compared_and_reported_with_its_own_figure(elsewhere):
    words = [*SINE, "--methods", "squared-error", "huber", "--seeds", 2, "--out", "runs"]
    out, _, code = isda("compare", *words, "--json", "table.json")
    assert code is None
    assert "test RMSE" in out
    (comparison,) = json.loads(Path("table.json").read_text())
    assert comparison["baseline"] == "squared-error"
    assert all(method["rmse_mean"] < 1 for method in comparison["methods"])
    # Reading back needs none of the task's code.
    for name in ("sine.py", "focal.py"):
        Path(name).unlink()
    sys.modules.pop("sine")
    again, _, code = isda("report", "runs", "--out", "page.html")
    assert code is None
    assert "test RMSE" in again
    assert "Test RMSE over the epochs" in Path("page.html").read_text(encoding="utf-8")


def test_a_mistake_in_a_setting_of_the_task_ends_in_its_sentence(elsewhere):
    _, _, code = isda("train", "--task", "sine:Sine", "--points", 5000)
    assert code == "isda: points must be from 1 to 999, got 5000"
    assert not Path("runs").exists()


@pytest.mark.slow
def test_the_task_trains_in_two_processes(elsewhere):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "isda"]
    done = subprocess.run(
        [*command, "train", *SINE, "--method", "huber", "--out", "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    isda("train", *SINE, "--method", "huber", "--out", "one")
    one, two = (json.loads(Path(name, "result.json").read_text())["rmse"] for name in ("one", "two"))
    assert one == pytest.approx(two, rel=1e-4)
