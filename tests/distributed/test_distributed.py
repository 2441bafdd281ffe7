"""1, 2 and 3 gloo processes end with the statistics and the loss of one process on the concatenated batch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_worker import (
    BAD_INPUTS,
    CLASSES,
    IGNORED,
    OTHER_ERRORS,
    STATISTICS,
    WRAPPERS,
    Settings,
    batch_of_step,
    counts,
    process_group,
    statistics,
    train,
    train_labels,
)
from filelock import FileLock
from torch import Tensor

from many_processes import side_by_side
from oracles import batch_covariance, decayed_covariance, decayed_statistics, pooled_within, shrunk_covariance

WORLDS = (1, 2, 3)
WORKER = Path(__file__).with_name("distributed_worker.py")
SECONDS = 180


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What every process of every world returned, by world and rank; each world is started once per run of pytest."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers
    with FileLock(folder / "distributed.lock"):
        for world in WORLDS:
            if not (folder / f"world{world}" / "done").exists():
                launch(world, folder / f"world{world}")
    return {
        world: [torch.load(folder / f"world{world}" / f"{rank}.pt", weights_only=False) for rank in range(world)]
        for world in WORLDS
    }


def launch(world: int, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    side_by_side(world, WORKER, folder, seconds=SECONDS)
    (folder / "done").touch()


def deviation(ours: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest entry."""
    assert ours.shape == expected.shape
    return float((ours.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1e-300))


def tolerance(settings: Settings) -> float:
    return 1e-6 if settings.dtype == torch.float32 else 1e-13


every_world = pytest.mark.parametrize("world", WORLDS)
every_setting = pytest.mark.parametrize("settings", STATISTICS, ids=lambda settings: settings.name)
exact_setting = pytest.mark.parametrize(
    "settings", [s for s in STATISTICS if s.covariance != "low_rank"], ids=lambda settings: settings.name
)
low_rank_setting = pytest.mark.parametrize(
    "settings", [s for s in STATISTICS if s.covariance == "low_rank"], ids=lambda settings: settings.name
)


def stream(settings: Settings) -> list[tuple[Tensor, Tensor]]:
    """All that counts, step by step, in float64."""
    batches = [batch_of_step(settings, step) for step in range(3)]
    return [(features[targets != IGNORED].double(), targets[targets != IGNORED]) for features, targets in batches]


def oracle_covariance(settings: Settings) -> Tensor:
    batches = stream(settings)
    if settings.covariance in ("within", "shrunk"):
        mixed = pooled_within if settings.covariance == "within" else shrunk_covariance
        _, matrices, weights = decayed_statistics(
            batches, CLASSES, settings.decay or 1.0, together=settings.covariance == "within"
        )
        return mixed(matrices, weights)
    if settings.covariance == "shared":
        batches = [(features, torch.zeros_like(targets)) for features, targets in batches]
    if settings.decay is not None:
        matrices = decayed_covariance(batches, CLASSES, settings.decay)[1]
    else:
        features, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        matrices = batch_covariance(features, targets, CLASSES)
    if settings.covariance == "shared":
        return matrices[:1].expand(CLASSES, -1, -1)
    return torch.diag_embed(matrices.diagonal(dim1=1, dim2=2)) if settings.covariance == "diagonal" else matrices


# -- statistics and loss -----------------------------------------------------------------------------------------------


@every_world
@every_setting
def test_every_process_ends_with_the_same_state_to_the_bit(results: dict, world: int, settings: Settings) -> None:
    first = results[world][0][settings.name]["state"]
    for other in results[world][1:]:
        state = other[settings.name]["state"]
        assert state.keys() == first.keys()
        assert all(torch.equal(state[name], first[name]) for name in first)


@every_world
@exact_setting
def test_covariances_equal_the_oracle_on_the_concatenated_stream(results: dict, world: int, settings: Settings) -> None:
    result = results[world][0][settings.name]
    assert deviation(result["covariance"], oracle_covariance(settings)) < tolerance(settings)
    counted = torch.cat([targets for _, targets in stream(settings)])
    assert result["state"]["covariance.count"].tolist() == torch.bincount(counted, minlength=CLASSES).tolist()


@every_world
@exact_setting
def test_losses_and_gradients_equal_those_of_one_process(results: dict, world: int, settings: Settings) -> None:
    single = statistics(settings, 0, 1)
    per_rank = [result[settings.name] for result in results[world]]
    for step, expected in enumerate(single["losses"]):
        together = torch.cat([result["losses"][step] for result in per_rank])
        assert deviation(together, expected) < tolerance(settings)
    assert deviation(sum(result["gradient"] for result in per_rank), single["gradient"]) < 10 * tolerance(settings)


@every_world
@every_setting
def test_updates_take_the_route_that_this_case_is_about(results: dict, world: int, settings: Settings) -> None:
    expected = "statistics" if world == 1 else settings.route  # one process gathers nothing
    assert results[world][0][settings.name]["routes"] == [expected] * 3


@every_world
@low_rank_setting
def test_low_rank_has_the_exact_diagonal(results: dict, world: int, settings: Settings) -> None:
    result = results[world][0][settings.name]
    expected = oracle_covariance(settings)
    diagonals = [matrices.diagonal(dim1=1, dim2=2) for matrices in (result["covariance"], expected)]
    assert deviation(*diagonals) < 3 * tolerance(settings)


@every_world
@low_rank_setting
def test_low_rank_keeps_the_error_bound_of_its_sketch(results: dict, world: int, settings: Settings) -> None:
    state = results[world][0][settings.name]["state"]
    sketch = state["covariance.sketch"].double()
    weights = state["covariance.effective" if settings.decay is not None else "covariance.count"].double()
    scatter = oracle_covariance(settings) * weights.view(-1, 1, 1)
    for exact, rows in zip(scatter, sketch, strict=True):
        left_out, total = torch.linalg.eigvalsh(exact - rows.t() @ rows), float(exact.trace())
        assert float(left_out[0]) >= -1e-5 * total
        assert float(left_out[-1]) <= total / (2 + 1) + 1e-5 * total


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "settings",
    [s for s in STATISTICS if (s.covariance, s.route) == ("low_rank", "features")],
    ids=lambda settings: settings.name,
)
def test_low_rank_from_exchanged_features_equals_one_process(results: dict, world: int, settings: Settings) -> None:
    single = statistics(settings, 0, 1)
    assert deviation(results[world][0][settings.name]["covariance"], single["covariance"]) < 10 * tolerance(settings)


@every_world
@pytest.mark.parametrize("name", ["identity", "learned"])
def test_models_without_statistics_count_the_features_of_all(results: dict, world: int, name: str) -> None:
    expected = counts(name, 0, 1)
    assert expected.sum() > 0
    for result in results[world]:
        assert torch.equal(result[f"counts-{name}"], expected)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_without_sync_every_process_keeps_to_itself(results: dict) -> None:
    assert [int(result["local-only"].sum()) for result in results[3]] == [1, 2, 3]


@pytest.mark.parametrize("route", ["features", "statistics"])
def test_a_process_group_shares_among_its_members_only(results: dict, route: str) -> None:
    first, *members = (result[f"group-{route}"] for result in results[3])
    assert first is None
    expected = process_group(route, 0, 1)
    for state in members:
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "case", "bad_rank"),
    [
        (2, "bad-full-criterion", 1),
        (2, "bad-full-update", 1),
        (2, "bad-identity-criterion", 1),
        (2, "bad-identity-update", 1),
        (3, "bad-full-criterion", 0),
    ],
)
@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_bad_input_on_one_process_raises_on_all_and_changes_nothing(
    results: dict, world: int, case: str, bad_rank: int, kind: str
) -> None:
    for rank in range(world):
        message = results[world][rank][case][f"{kind}, bad"]
        assert message.startswith("unchanged: ")
        if rank == bad_rank:
            assert any(name in message for name in ("features must", "targets must", "logits must"))
        else:
            assert f"bad input on process {bad_rank}; statistics were not changed" in message
        assert results[world][rank][case][f"{kind}, good"] == "changed: "


@pytest.mark.parametrize("kind", OTHER_ERRORS)
@pytest.mark.parametrize("model", ["full", "identity"])
def test_any_error_on_one_process_raises_on_the_other_instead_of_leaving_it_waiting(
    results: dict, model: str, kind: str
) -> None:
    first, second = (result[f"other-error-{model}"][kind] for result in results[2])
    if "meta" in kind:
        assert first[0] in ("RuntimeError", "NotImplementedError")
        message = "process 0 raised an error before the update; statistics were not changed"
        assert second[:2] == ("RuntimeError", message)
    else:
        assert first[0] == "ValueError"
        assert second[:2] == ("ValueError", "bad input on process 0; statistics were not changed")
    assert first[2] == second[2] == 8  # what came after is learnt by both


# -- data parallel training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_processes_train_like_one_with_the_doubled_batch(results: dict, wrapper: str) -> None:
    single = train(wrapper, 0, 1)
    assert single["losses"][-1] < single["losses"][0] + 0.5  # it trains; the strength grows meanwhile
    assert_trained_alike([result[f"train-{wrapper}"] for result in results[2]], single)


@pytest.mark.parametrize("bound", ["jensen", "exact"])
def test_with_several_labels_two_processes_train_like_one(results: dict, bound: str) -> None:
    assert_trained_alike([result[f"train-labels-{bound}"] for result in results[2]], train_labels(bound, 0, 1))


def test_a_bad_label_on_one_process_raises_on_all_and_changes_nothing(results: dict) -> None:
    messages = [result["bad-labels"] for result in results[2]]
    assert messages[0] == "bad input on process 1; statistics were not changed; 0 rows"
    assert messages[1] == "targets must lie in 0..1, got 2 (20 of 20 labels are out of range); 0 rows"


def assert_trained_alike(ours: list[dict[str, Any]], single: dict[str, Any]) -> None:
    for result in ours:
        for name, expected in single["parameters"].items():
            torch.testing.assert_close(result["parameters"][name], expected, rtol=0, atol=1e-12)
        for name, expected in single["criterion"].items():
            torch.testing.assert_close(result["criterion"][name], expected, rtol=1e-12, atol=1e-12)
    mean = (ours[0]["losses"] + ours[1]["losses"]) / 2
    torch.testing.assert_close(mean, single["losses"], rtol=0, atol=1e-12)


def test_join_is_refused_where_statistics_are_shared_and_works_where_they_are_not(results: dict) -> None:
    assert all("cannot be used inside join()" in result["join-True"] for result in results[2])
    assert [result["join-False"] for result in results[2]] == ["2", "4"]
