"""Two processes of each library train like one with twice the batch, statistics and strength included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from plain_training import LAMBDA_0, TOLERANCE, loader, train_by_hand

COUNT, BATCH = 24, 6


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What both processes ended with. One start, because importing takes the longest."""
    for library in ("accelerate", "lightning", "transformers"):
        pytest.importorskip(library)
    folder = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("worker.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("library", "accumulate"), [("accelerate", 1), ("lightning", 2), ("huggingface", 1)])
def test_two_processes_train_like_one_with_twice_the_batch(library, accumulate, ended):
    model, criterion = train_by_hand(loader(COUNT, BATCH), accumulate=accumulate)
    for rank in ended:
        assert rank[library]["strength"] == pytest.approx(LAMBDA_0)
        for name, part in (("model", model), ("criterion", criterion)):
            for key, value in part.state_dict().items():
                torch.testing.assert_close(rank[library][name][key], value, rtol=TOLERANCE, atol=TOLERANCE)
