"""Two processes train what one trains on the whole batch, the state of the method included."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from semi_processes_worker import METHODS, run

from isda.lab.train import Processes
from many_processes import side_by_side
from resumable_runs import saved

WORKER = Path(__file__).with_name("semi_processes_worker.py")


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run(folder / "one", Processes(0, 1, torch.device("cpu")))
    side_by_side(2, WORKER, folder / "two")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("name", METHODS)
def test_weights_and_state_are_those_of_one_process(one_and_two, name):
    """At the last checkpoint, which for temporal ensembling is in the middle of an epoch."""
    one, two = (saved(folder / name) for folder in one_and_two)
    for group in ("model", "method"):
        expected, found = one[group], two[group]
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9, msg=f"{group} {key}")


@pytest.mark.parametrize("name", METHODS)
def test_the_result_is_that_of_one_process(one_and_two, name):
    expected, found = (load_file(folder / name / "model.safetensors") for folder in one_and_two)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_metrics_are_those_of_all_processes(one_and_two, name):
    one, two = (
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for folder in one_and_two
    )
    for expected, measured in zip(one, two, strict=True):
        for record in (expected, measured):
            record.pop("seconds")
        assert measured == pytest.approx(expected, rel=1e-9)
    assert one[-1]["train/regulariser"] > 0
