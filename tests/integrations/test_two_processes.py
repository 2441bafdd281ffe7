"""Two processes of each library train like one with twice the batch, and resume to the same bits."""

from __future__ import annotations

from pathlib import Path

import accelerate_runs
import huggingface_runs
import pytest
import torch
from states import largest_difference, rounding_of

from isda.integrations.huggingface import ISDATraining
from many_processes import side_by_side


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What both processes ended with, and the folder they shared. One start, because importing takes the longest."""
    folder = tmp_path_factory.mktemp("processes")
    side_by_side(2, Path(__file__).with_name("worker.py"), folder)
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)], folder


def huggingface(folder):
    isda = ISDATraining(huggingface_runs.LAMBDA_0)
    args = huggingface_runs.arguments(folder, gradient_accumulation_steps=2)
    trainer = huggingface_runs.trainer_of("token", isda, args, size=40)
    trainer.train()
    return trainer.model, isda.criterion


def accelerate(folder):
    return accelerate_runs.plain_loop(size=40, batch_size=4, accumulation=2, epochs=2)


LIBRARIES = {"huggingface": huggingface, "accelerate": accelerate}


@pytest.mark.parametrize("library", LIBRARIES)
def test_two_processes_train_like_one_with_twice_the_batch(library, ended, tmp_path):
    ranks, _ = ended
    model, criterion = LIBRARIES[library](tmp_path)
    for rank in ranks:
        assert largest_difference(rank[library]["whole model"], model) < rounding_of(10)
        covariance = {name: t for name, t in rank[library]["whole statistics"].items() if name.startswith("covariance")}
        expected = {f"covariance.{name}": t for name, t in criterion.covariance.state_dict().items()}
        assert largest_difference(covariance, expected) < rounding_of(10)
        assert rank[library]["whole statistics"]["schedule.step"] == 10


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("part", ["model", "statistics"])
def test_two_processes_resume_to_the_same_bits(library, part, ended):
    ranks, _ = ended
    for rank in ranks:
        assert largest_difference(rank[library][f"resumed {part}"], rank[library][f"whole {part}"]) == 0
        assert largest_difference(rank[library][f"stopped {part}"], rank[library][f"whole {part}"]) > 1e-3
    assert largest_difference(ranks[0][library][f"whole {part}"], ranks[1][library][f"whole {part}"]) == 0


def test_two_processes_match_one_strength(ended):
    ranks, _ = ended
    for part in ("model", "statistics"):
        assert largest_difference(*(rank["huggingface"][f"auto {part}"] for rank in ranks)) == 0
    solutions = ranks[0]["huggingface"]["auto statistics"]["schedule._extra_state"]
    assert int((solutions >= 0).sum()) == 2  # one per epoch


def test_statistics_are_saved_once(ended):
    _, folder = ended
    saved = [*folder.glob("huggingface/cut/checkpoint-3/*isda*"), *folder.glob("accelerate/custom_checkpoint*")]
    assert [path.name for path in saved] == ["isda.safetensors", "custom_checkpoint_0.pkl"]
