"""TensorBoard events: every number of every epoch, once, also after an interruption."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from isda.lab.engine.callbacks import TensorBoard
from isda.lab.train import Hook, Saving, train
from small_runs import digits, small_config


class Failing(Hook):
    """Ends the run after a step."""

    def __init__(self, at):
        self.at = at

    def step(self, step):
        if step == self.at:
            raise RuntimeError("enough")


@pytest.fixture(autouse=True)
def _files_in_order(monkeypatch):
    """A process that writes several event files within a second numbers them; a reader sorts the names as text."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def events(folder):
    accumulator = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: {e.step: e.value for e in accumulator.Scalars(tag)} for tag in accumulator.Tags()["scalars"]}


def counts(folder):
    accumulator = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"]}


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tags = {name for line in lines for name in line} - {"epoch", "step"}
    return {tag: {line["step"]: pytest.approx(line[tag], rel=1e-6) for line in lines if tag in line} for tag in tags}


def test_the_events_are_the_metrics(tmp_path):
    train(small_config(epochs=3), digits(), tmp_path, hooks=[TensorBoard()])
    assert events(tmp_path) == metrics(tmp_path)
    assert events(tmp_path)["test/error"].keys() == {5, 10, 15}
    assert {"train/loss", "train/isda", "train/error", "strength", "learning_rate"} <= events(tmp_path).keys()


def test_epochs_without_a_test_have_no_event_of_it(tmp_path):
    train(small_config(epochs=3, evaluate_every=2), digits(), tmp_path, hooks=[TensorBoard()])
    assert events(tmp_path)["test/error"].keys() == {10, 15}
    assert events(tmp_path) == metrics(tmp_path)


@pytest.mark.parametrize(
    "saving",
    [
        # The checkpoint of step 7 is before the second epoch's events, that of step 12 after them.
        Saving(steps=7),
        Saving(steps=12),
        Saving(),
    ],
    ids=["within an epoch", "after an epoch", "without a checkpoint"],
)
def test_a_resumed_run_has_every_event_once(tmp_path, saving):
    config = small_config(epochs=3)
    with pytest.raises(RuntimeError, match="enough"):
        train(config, digits(), tmp_path, saving=saving, hooks=[TensorBoard(), Failing(at=13)])
    train(config, digits(), tmp_path, hooks=[TensorBoard()])
    assert counts(tmp_path) == {3}
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert events(tmp_path) == metrics(tmp_path)


def test_closing_without_a_start_is_harmless():
    TensorBoard().close()
