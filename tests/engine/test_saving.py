"""When a run saves and when it stops, step by step."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from isda.lab.engine import Processes, Saving, State, Stopped
from isda.lab.engine.loop import AGREE_EVERY, CheckpointSchedule
from isda.lab.engine.run_folder import RunFolder

TOTAL = 40
METRICS = [{"epoch": 1}]


@dataclass(frozen=True)
class Pair(Processes):
    """The first of two processes, of which the other says what it is told to; it remembers when it was asked."""

    other: tuple[bool, bool] = (False, False)
    asked: list[str] = field(default_factory=list)

    def any(self, *flags: bool) -> list[bool]:
        self.asked.append("any")
        return [mine or theirs for mine, theirs in zip(flags, self.other, strict=True)]

    def wait(self) -> None:
        self.asked.append("wait")


class CountingJob:
    """A job whose state is how often it was asked for it."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.config = processes, SimpleNamespace(total_steps=TOTAL, identity="this run")
        self.checked = 0

    def check(self) -> None:
        self.checked += 1

    def state(self) -> State:
        return State({"model": {"x": torch.ones(1)}}, {"checked": self.checked})


def saver_of(tmp_path, saving: Saving, processes: Processes | None = None) -> CheckpointSchedule:
    processes = processes or Processes(0, 1, torch.device("cpu"))
    return CheckpointSchedule(RunFolder(tmp_path / "run", saving.keep), CountingJob(processes), saving)


def pair(**settings) -> Pair:
    return Pair(0, 2, torch.device("cpu"), **settings)


def saved_after(saver: CheckpointSchedule, steps: range, stop: str | None = None) -> list[int]:
    """After which steps there was a new checkpoint."""
    saved = []
    for step in steps:
        saver.after_step(step, METRICS, stop)
        if (saver.run.checkpoints.steps or [None])[-1] == step:
            saved.append(step)
    return saved


def test_without_steps_only_time_decides(tmp_path):
    saver = saver_of(tmp_path, Saving(minutes=0.002))  # 120 ms
    assert saved_after(saver, range(1, 3)) == []
    time.sleep(0.15)
    assert saved_after(saver, range(3, 6)) == [3]


def test_the_default_is_five_minutes(tmp_path):
    saver = saver_of(tmp_path, Saving())
    saver.last = time.monotonic() - 5 * 60 + 5
    assert saved_after(saver, range(1, 2)) == []
    saver.last = time.monotonic() - 5 * 60 - 1
    assert saved_after(saver, range(2, 4)) == [2]
    assert saver.run.checkpoints.keep == 2


def test_a_signal_saves_and_stops(tmp_path):
    saver = saver_of(tmp_path, Saving())
    with pytest.raises(Stopped, match=rf"stopped by SIGTERM after step 7 of {TOTAL}, which is saved"):
        saver.after_step(7, METRICS, "SIGTERM")
    assert (saver.run.checkpoints.steps or [None])[-1] == 7
    assert saver.latest_checkpoint() == "the checkpoint of step 7 is kept"


def test_a_signal_after_the_last_step_saves_and_lets_the_run_finish(tmp_path):
    saver = saver_of(tmp_path, Saving())
    assert saved_after(saver, range(TOTAL, TOTAL + 1), "SIGINT") == [TOTAL]


def test_before_the_first_checkpoint_there_is_none_to_go_on_from(tmp_path):
    assert saver_of(tmp_path, Saving()).latest_checkpoint() == "there is no earlier checkpoint"


def test_processes_ask_each_other_every_sixteen_steps_and_after_the_last(tmp_path):
    processes = pair()
    saver, asked = saver_of(tmp_path, Saving(), processes), []
    for step in range(1, TOTAL + 1):
        processes.asked.clear()
        saver.after_step(step, METRICS, None)
        asked += [step] * len(processes.asked)
    assert asked == [AGREE_EVERY, 2 * AGREE_EVERY, TOTAL]
    assert AGREE_EVERY == 16


def test_a_signal_in_one_process_waits_for_the_others_to_agree(tmp_path):
    saver = saver_of(tmp_path, Saving(), pair())
    assert saved_after(saver, range(1, AGREE_EVERY), "SIGTERM") == []
    with pytest.raises(Stopped, match=f"stopped by SIGTERM after step {AGREE_EVERY}"):
        saver.after_step(AGREE_EVERY, METRICS, "SIGTERM")


def test_a_signal_in_another_process_stops_this_one_too(tmp_path):
    saver = saver_of(tmp_path, Saving(), pair(other=(False, True)))
    with pytest.raises(Stopped, match=f"stopped by a signal after step {AGREE_EVERY}") as stopped:
        saver.after_step(AGREE_EVERY, METRICS, None)
    assert stopped.value.signal == signal.SIGTERM
    assert (saver.run.checkpoints.steps or [None])[-1] == AGREE_EVERY


def test_where_the_others_are_due_all_of_them_save_and_wait(tmp_path):
    processes = pair(other=(True, False))
    saver = saver_of(tmp_path, Saving(), processes)
    saver.after_step(AGREE_EVERY, METRICS, None)
    assert (saver.run.checkpoints.steps or [None])[-1] == AGREE_EVERY
    assert processes.asked == ["any", "wait"]


def test_only_the_first_process_writes(tmp_path):
    second = Pair(1, 2, torch.device("cpu"))
    saver = saver_of(tmp_path, Saving(steps=1), second)
    saver.after_step(1, METRICS, None)
    assert (saver.run.checkpoints.steps or [None])[-1] is None
    assert saver.job.checked == 1
    assert second.asked == ["wait"]


@pytest.mark.parametrize("minutes", [0, -1.0, float("nan")])
def test_minutes_must_be_more_than_nothing(minutes):
    with pytest.raises(ValueError, match="minutes between checkpoints must be more than 0"):
        Saving(minutes=minutes)


def test_steps_must_be_at_least_one():
    assert Saving(steps=1).steps == 1
    with pytest.raises(ValueError, match="steps between checkpoints must be at least 1, got 0"):
        Saving(steps=0)
