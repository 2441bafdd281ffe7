"""What is shown while a run goes on: a bar with the time left on a terminal, one line per epoch elsewhere."""

import io
import re
import sys

import pytest

from isda.lab.cli import main
from isda.lab.engine.callbacks.progress import EpochLines, ProgressBar, describe_epoch, make_progress, make_watcher
from isda.lab.train import Saving, train
from small_runs import SMALL_WORDS, digits, small_config, train_small

METRICS = {"epoch": 3, "step": 15, "train/loss": 1.23456, "strength": 0.25, "test/error": 12.345, "seconds": 6.54}


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self):
        return True


def at_a_terminal(monkeypatch):
    """From here on; a fixture would come too early, since pytest puts its own stream in place for the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def plain(stream):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


@pytest.mark.parametrize(
    ("without", "line"),
    [
        ((), "epoch 3/8, train loss 1.2346, strength 0.250, test error 12.35%, 6.5 s"),
        (("strength",), "epoch 3/8, train loss 1.2346, test error 12.35%, 6.5 s"),
        (("strength", "test/error"), "epoch 3/8, train loss 1.2346, 6.5 s"),
    ],
)
def test_an_epoch_is_one_line_of_what_there_is(without, line):
    metrics = {name: value for name, value in METRICS.items() if name not in without}
    assert describe_epoch(metrics, small_config(epochs=8)) == line


def test_the_bar_is_for_terminals():
    assert isinstance(make_progress(True), ProgressBar)
    assert isinstance(make_progress(False), EpochLines)


def test_lines_name_the_run_its_scale_and_each_epoch(tmp_path, capsys):
    train(small_config(seed=4), digits(), tmp_path, hooks=[EpochLines()])
    first, *epochs = capsys.readouterr().out.splitlines()
    assert first == f"isda on digits, fast-cnn, 100 images, 2 epochs (custom scale), seed 4 in {tmp_path}"
    assert [line.split(",")[0] for line in epochs] == ["epoch 1/2", "epoch 2/2"]
    assert all(
        re.search(r"train loss \d+\.\d{4}, strength 0\.\d{3}, test error \d+\.\d\d%, \d+\.\d s$", e) for e in epochs
    )


def test_lines_say_where_a_run_is_taken_up(tmp_path, capsys):
    class Failing(EpochLines):
        def step(self, step):
            if step == 7:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        train(small_config(), digits(), tmp_path, hooks=[Failing()], saving=Saving(steps=3))
    capsys.readouterr()
    train(small_config(), digits(), tmp_path, hooks=[EpochLines()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "resumed after step 6 of 10"
    assert [line.split(",")[0] for line in lines[2:]] == ["epoch 2/2"]


def test_the_bar_shows_steps_the_time_left_and_the_last_epoch(tmp_path, monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    train(small_config(), digits(), tmp_path, hooks=[ProgressBar()])
    shown = plain(terminal)
    assert f"isda on digits, fast-cnn, 100 images, 2 epochs (custom scale), seed 0 in {tmp_path}" in shown
    assert "10/10" in shown
    assert "epoch 2/2, train loss" in shown
    assert re.search(r"\d:\d\d:\d\d", shown)


def test_the_bar_is_put_away_after_an_error(tmp_path, monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    bar = ProgressBar()
    with pytest.raises(ValueError, match="step 2"):
        train(small_config(method="cross-entropy", lr=1e30), digits(), tmp_path, hooks=[bar])
    assert "0/10" in plain(terminal) or "1/10" in plain(terminal)
    assert not bar.bar.live.is_started


def test_a_bar_that_was_never_shown_can_be_closed():
    ProgressBar().close()


def test_the_command_shows_lines_to_a_pipe(tmp_path):
    out, err, code = train_small(tmp_path / "run")
    assert code is None
    assert err == ""
    assert [line.split(",")[0] for line in out.splitlines()[1:3]] == ["epoch 1/2", "epoch 2/2"]


def test_the_command_shows_a_terminal_the_bar_and_prints_the_result_alone(tmp_path, monkeypatch, capsys):
    terminal = at_a_terminal(monkeypatch)
    main(["train", *SMALL_WORDS, "--out", str(tmp_path / "run")])
    assert "10/10" in plain(terminal)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("test error ")


def test_a_comparison_tells_a_pipe_about_each_run(finished_run, capsys):
    with make_watcher(terminal=False) as watcher:
        watcher.start(total_epochs=4, runs=2)
        watcher.progress(1, 0)
        watcher.run_finished(finished_run, None)
        watcher.run_finished(finished_run, "the disk is full")
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"run 1/2: {finished_run} test error \d+\.\d\d%", lines[0])
    assert lines[1] == f"run 2/2: {finished_run} failed: the disk is full"


def test_a_comparison_shows_a_terminal_a_bar_and_what_failed(finished_run, monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    with make_watcher(terminal=True) as watcher:
        watcher.start(total_epochs=4, runs=2)
        watcher.progress(3, 1)
        watcher.run_finished(finished_run, None)
        watcher.run_finished(finished_run, "the disk [is] full")
        watcher.progress(4, 2)
    shown = plain(terminal)
    assert "4/4" in shown
    assert "2 of 2 runs" in shown
    assert "failed: the disk [is] full" in shown.replace("\n", "")
