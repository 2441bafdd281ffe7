"""Several processes train what one process trains on the whole batch, and are saved and resumed like one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from many_processes_worker import run
from safetensors.torch import load_file

from isda.lab.engine.processes import deterministic_algorithms
from isda.lab.tasks.common.predictions import PREDICTIONS_FILE
from isda.lab.train import Processes
from many_processes import side_by_side, torchrun
from resumable_runs import saved

WORKER = Path(__file__).with_name("many_processes_worker.py")


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    run(folder / "one", Processes(0, 1, torch.device("cpu")))
    side_by_side(2, WORKER, folder / "two")
    return folder / "one", folder / "two"


def tensors(folder: Path, group: str) -> dict[str, torch.Tensor]:
    return saved(folder)[group]


@pytest.mark.parametrize("group", ["model", "method"])
def test_two_processes_equal_one_with_the_doubled_batch(one_and_two, group):
    """Weights and statistics after 20 steps; the issue asks for 1e-5, float64 gives much more."""
    one, two = (tensors(folder, group) for folder in one_and_two)
    assert one.keys() == two.keys()
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-9, atol=1e-9)


def test_metrics_are_those_of_all_processes(one_and_two):
    for one, two in zip(*map(measured, one_and_two), strict=True):
        assert two == pytest.approx(one, rel=1e-9)


def test_predictions_are_those_of_all_processes_in_their_order(one_and_two):
    one, two = (load_file(folder / PREDICTIONS_FILE) for folder in one_and_two)
    assert one.keys() == two.keys()
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-6, atol=1e-7)


def test_every_process_returns_the_content_of_the_result(one_and_two):
    _, two = one_and_two
    written = json.loads((two / "result.json").read_text())
    assert [json.loads(Path(f"{two}-rank-{rank}.json").read_text()) for rank in (0, 1)] == [written] * 2


def test_the_command_trains_and_resumes_under_torchrun(tmp_path):
    arguments = ["-m", "isda", "train", "--labels", "80", "--batch-size", "20", "--width", "0.25", "--epochs", "2"]
    arguments += ["--checkpoint-steps", "3", "--threads", "1", "--out", str(tmp_path / "run")]
    done = torchrun(2, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(mean of the last") == 1
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    metrics = measured(tmp_path / "run")
    # As if killed after step 6 of 8.
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    done = torchrun(2, *arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step 6 of 8" in done.stdout
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    # The training figures of the epoch that was interrupted hold what either process had counted.
    assert measured(tmp_path / "run") == metrics


def measured(folder):
    """The lines of metrics without the time they took."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


@pytest.mark.parametrize(
    ("rank", "world", "expected"), [(0, 2, [1.0, 2.0]), (1, 2, [3.0, 5.0]), (0, 1, [4.0, 7.0]), (2, 3, [0.0, 0.0])]
)
def test_sums_of_a_checkpoint_go_back_to_the_processes_they_came_from(rank, world, expected):
    collected = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert Processes(rank, world, torch.device("cpu")).own(collected).tolist() == expected


@pytest.mark.parametrize("before", [(False, False, True), (True, False, False), (True, True, True)])
def test_determinism_is_switched_on_for_the_block_only(before, monkeypatch):
    enabled, warns, benchmark = before
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
        with deterministic_algorithms(torch.device("cuda")):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        found = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert (*found, torch.backends.cudnn.benchmark) == before
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False
