"""Methods over two processes: what does not draw per sample equals one process, and all processes always agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping_worker import run

from isda.lab.train import Processes
from many_processes import side_by_side

WORKER = Path(__file__).with_name("stepping_worker.py")
EQUAL = ("isda:lambda_0=2,covariance=learned,rank=4",)
AGREE = ("explicit:lambda_0=2,covariance=learned,rank=4,samples=2", "mixup+isda:lambda_0=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    side_by_side(2, WORKER, folder / "two", *EQUAL, *AGREE)
    return folder


@pytest.mark.parametrize("method", EQUAL)
def test_two_processes_equal_one(folder, method):
    """Weights, learned covariances and statistics."""
    run(folder / "one", Processes(0, 1, torch.device("cpu")), method)
    one, two = (load_file(folder / world / f"{method}.safetensors") for world in ("one", "two"))
    assert one.keys() == two.keys()
    assert any(name.endswith("factor") for name in one) == ("learned" in method)
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", AGREE)
def test_processes_that_draw_their_own_end_with_the_same_weights(folder, method):
    """The worker compares them, bit for bit; what is left here is that the method trained what it should."""
    tensors = load_file(folder / "two" / f"{method}.safetensors")
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    for name, value in tensors.items():
        if name.endswith("factor"):
            assert not torch.equal(value, torch.eye(*value.shape[1:], dtype=value.dtype).expand_as(value))
