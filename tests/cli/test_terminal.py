"""What a command says to a person at a terminal alone: that it loads, what comes next, how long it takes."""

import os
import subprocess
import sys

import pytest
import torch
import tyro

from isda.lab.cli.compare import command_for as compare_command
from isda.lab.cli.estimate import announce_duration, estimated_seconds
from isda.lab.train import Processes, Settings, resolve
from small_runs import ALONE, SMALL_WORDS, digits, small_config

pty = pytest.importorskip("pty")  # of Unix


def on_terminal(folder, *words):
    """What a command shows on a terminal."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "isda", *words], cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the terminal is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode().replace("\r", "")


def test_a_training_says_at_once_that_it_loads_and_in_the_end_what_comes_next(tmp_path):
    shown = on_terminal(tmp_path, "train", *SMALL_WORDS, "--epochs", "1", "--out", "my run").splitlines()
    assert shown[-1] == "next: isda predict 'my run' IMAGE, isda evaluate 'my run', isda directions 'my run'"


# -- how long it takes -------------------------------------------------------------------------------------------------


def test_runs_of_hours_at_the_papers_scale_are_announced(capsys):
    config = resolve(Settings(network="resnet-32"), digits())
    announce_duration(config, ALONE, runs=100)
    line = capsys.readouterr().err
    assert line.startswith("isda: about ")
    assert "for 100 runs of 160 epochs of 1,297 images; --scale small takes a tenth" in line
    announce_duration(config, ALONE, runs=0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("given", [{"scale": "small"}, {"epochs": 160}])
def test_long_runs_of_other_scales_are_announced(capsys, given):
    announce_duration(resolve(Settings(network="resnet-32", **given), digits()), ALONE, runs=1000)
    line = capsys.readouterr().err
    assert line.startswith("isda: about ")
    assert "images; --epochs N as many as you like" in line


def test_short_runs_smoke_tests_and_named_data_on_accelerators_are_not_announced(capsys):
    announce_duration(small_config(), ALONE)
    announce_duration(resolve(Settings(network="resnet-32", scale="smoke"), digits()), ALONE, runs=1000)
    announce_duration(resolve(Settings(network="resnet-110"), digits()), Processes(0, 1, torch.device("cuda")), 1000)
    announce_duration(resolve(Settings(network="resnet-110"), digits()), Processes(1, 2, torch.device("cpu")), 1000)
    assert capsys.readouterr().err == ""


def test_a_comparison_announces_epochs_of_ones_own(tmp_path, capsys, monkeypatch):
    class Announced(Exception):
        pass

    def announce(config, processes, runs):
        raise Announced(config.epochs, runs)

    monkeypatch.setattr("isda.lab.cli.estimate.announce_duration", announce)
    words = ["--data", "digits", "--epochs", "7", "--methods", "cross-entropy", "isda", "--seeds", "3"]
    with pytest.raises(Announced) as announced:
        tyro.cli(compare_command(["compare", *words]), args=[*words, "--out", str(tmp_path / "runs")])
    assert announced.value.args == (7, 6)


def test_the_estimate_grows_with_the_steps_and_leaves_the_random_numbers_alone():
    short, long = (resolve(Settings(network="fast-cnn", epochs=epochs), digits()) for epochs in (1, 50))
    state = torch.random.get_rng_state()
    # Fifty times the steps; the measurement itself may be off by a lot on a busy machine.
    assert 5 < estimated_seconds(long, ALONE.device) / estimated_seconds(short, ALONE.device) < 500
    assert torch.equal(torch.random.get_rng_state(), state)
