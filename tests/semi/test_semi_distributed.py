"""Teacher, ensemble and ramps are the same on all processes, and those of one process on the whole batch."""

from pathlib import Path

import pytest
import torch
from semi_worker import CASES, EXACT, SAME, train

from many_processes import side_by_side

WORKER = Path(__file__).with_name("semi_worker.py")
WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("semi")
    side_by_side(WORLD, WORKER, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


@pytest.mark.parametrize(("name", "norm"), CASES)
@pytest.mark.parametrize("moment", ["objective", "within"])
def test_every_process_holds_the_same_state_to_the_bit(results, name, norm, moment):
    first, second = (result[name, norm][moment] for result in results)
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.parametrize("name", EXACT)
def test_two_processes_end_where_one_does(results, name):
    single = train(name, False, 0, 1)
    for part in ("network", "objective", "within"):
        for key, expected in single[part].items():
            torch.testing.assert_close(results[0][name, False][part][key], expected, rtol=1e-9, atol=1e-12, msg=key)


def test_the_teachers_running_statistics_are_the_mean_of_what_the_processes_found(results):
    teacher = results[0]["mean-teacher", True]["objective"]
    single = train("mean-teacher", True, 0, 1)["objective"]
    key = "regulariser.teacher.body.2.running_mean"
    # Parts of the batch are normalised by themselves, so the numbers differ, but they tell of the whole batch.
    assert (teacher[key] - single[key]).abs().max() < 0.2 * single[key].abs().max()


def test_every_case_has_something_to_compare(results):
    for name in (*EXACT, *SAME):
        state = results[0][name, name in SAME]["objective"]
        assert int(state["_extra_state"]) == 6
    ensemble = results[0]["temporal-ensembling+isda", False]["objective"]["regulariser.epochs"]
    assert int((ensemble > 0).sum()) > 12  # of both processes, each of which saw four samples per step
