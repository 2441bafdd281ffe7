"""Two gloo processes end with the statistics, losses and weights of one process on the concatenated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import oracles
from distributed_worker import A, C, every_result, rows_of_step
from loss_cases import ONLINE, integers
from many_processes import side_by_side


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("distributed")
    side_by_side(2, Path(__file__).with_name("distributed_worker.py"), folder, seconds=120)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def single() -> dict[str, Any]:
    """What one process finds."""
    return every_result(0, 1)


@pytest.mark.parametrize("case", [*ONLINE, "memory"])
def test_statistics_of_uneven_parts_are_those_of_the_whole(results, single, case):
    for result in results:
        torch.testing.assert_close(result[case], single[case], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(results[0][case], results[1][case], rtol=0, atol=0)
    if case in ONLINE:
        parts = [rows_of_step(step, 0, 1) for step in range(3)]
        features, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        counted = targets >= 0
        expected = oracles.covariances_of(case, features[counted], targets[counted], C)
        torch.testing.assert_close(single[case]["sigmas"], expected)


@pytest.mark.parametrize("bound", ["jensen", "tilted", "binary"])
def test_two_processes_train_like_one(results, single, bound):
    expected = single[f"train {bound}"]
    ours = [result[f"train {bound}"] for result in results]
    for result in ours:
        torch.testing.assert_close(result["parameters"], expected["parameters"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(dict(result["state"]), dict(expected["state"]), rtol=1e-9, atol=1e-9)
    mean = (ours[0]["losses"] + ours[1]["losses"]) / 2
    torch.testing.assert_close(mean, expected["losses"], rtol=1e-9, atol=1e-9)


def test_every_exchange_keeps_to_the_process_group(results):
    own = [torch.bincount(integers(C, 4 + rank, seed=rank), minlength=C) for rank in range(2)]
    for rank, result in enumerate(results):
        counts = result["groups"]
        assert all(torch.equal(count, own[rank]) for count in counts[:8])
        assert all(torch.equal(count, own[0] + own[1]) for count in counts[8:])


def test_a_sharded_weight_gets_the_gradient_of_a_whole_one(results):
    for result in results:
        whole, *sharded = result["sharded"]
        assert whole.shape == (C, A)
        assert whole.abs().max() > 1e-2
        for gradient in sharded:
            torch.testing.assert_close(gradient, whole)
