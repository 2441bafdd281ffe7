"""A semi-supervised run that was interrupted ends in the very bits of one that was not: teacher, ensemble, ramps."""

import random

import pytest

from isda.lab.engine import Hook
from isda.lab.train import Saving, Stopped, train
from resumable_runs import outcome, saved
from semi_runs import semi_config
from small_runs import digits

STEPS = 18


class StopAfter(Hook):
    """Interrupts a run as a signal would, after a step."""

    def __init__(self, step):
        self.last = step

    def step(self, step):
        if step == self.last:
            raise Stopped("enough")


@pytest.mark.parametrize("name", ["temporal-ensembling+isda", "mean-teacher+isda", "vat"])
def test_interruptions_at_random_steps_change_nothing(name, tmp_path):
    run = semi_config(method=name, seed=1), digits()
    train(*run, tmp_path / "whole", saving=Saving(steps=1))
    # In the middle of an epoch, where the ensemble's next targets are under way, and anywhere else.
    for step in sorted({8, *random.Random(name).sample(range(1, STEPS), 3)}):
        with pytest.raises(Stopped):
            train(*run, tmp_path / "broken", saving=Saving(steps=1), hooks=[StopAfter(step + 1)])
    train(*run, tmp_path / "broken", saving=Saving(steps=1))
    whole, broken = outcome(tmp_path / "whole"), outcome(tmp_path / "broken")
    assert whole == broken


@pytest.mark.parametrize(
    ("name", "part"),
    [("mean-teacher", "regulariser.teacher.classifier.weight"), ("temporal-ensembling", "regulariser.ensemble")],
)
def test_what_must_survive_is_in_the_checkpoint(name, part, tmp_path):
    train(semi_config(method=f"{name}+isda"), digits(), tmp_path, saving=Saving(steps=1))
    stored = saved(tmp_path)["method"]
    assert stored[f"objective.{part}"].abs().sum() > 0
    assert int(stored["objective._extra_state"]) == STEPS
    assert stored["objective.criterion.covariance.count"].sum() == 12 * STEPS


@pytest.mark.parametrize(("step", "epochs", "seen"), [(4, 0, 200), (5, 1, 0), (8, 1, 150), (10, 2, 0)])
def test_the_ensembles_targets_are_made_at_the_end_of_each_epoch(step, epochs, seen, tmp_path):
    """Five steps of 50 images each."""
    run = semi_config(method="temporal-ensembling", batch_size=50), digits()
    with pytest.raises(Stopped):
        train(*run, tmp_path, saving=Saving(steps=1), hooks=[StopAfter(step + 1)])
    stored = saved(tmp_path)["method"]
    assert stored["objective.regulariser.epochs"].unique().tolist() == [epochs]
    assert int(stored["objective.regulariser.seen"].sum()) == seen
