"""Closed streams, terminals with few letters and columns, Ctrl-C at any moment, and how warnings look."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from io import BytesIO, TextIOWrapper

import numpy as np
import pytest
from PIL import Image

from isda.lab.cli import main
from isda.lab.cli.console import prepare_console
from small_runs import SMALL_WORDS, digits, isda

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
# As the command `isda` does, which pip makes; and says when it begins.
SCRIPT = "from isda.__main__ import run; print('begun', flush=True); run()"


@pytest.fixture
def place(tmp_path, monkeypatch, finished_run):
    """A folder with an image and a link to a finished run; columns are 40 and letters few."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(digits().x_test[0, 0].numpy()).save(tmp_path / "digit.png")
    (tmp_path / "run").symlink_to(finished_run)
    return tmp_path


COMMANDS = {
    "train": ["train", *SMALL_WORDS, "--epochs", "1", "--out", "new"],
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "digit.png"],
    "report": ["report", "run", "--title", "λ ± …"],
    "data": ["data"],
    "data digits": ["data", "digits"],
    "help": ["train", "--help"],
    "compare help": ["compare", "--help"],
    "an error": ["train", "--method", "isdä"],
}


def end_of(words):
    try:
        main(words)
    except SystemExit as ended:
        return ended.code
    return None


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_terminal_with_few_letters_and_columns_will_do(words, place, monkeypatch):
    for name, value in {"COLUMNS": "40", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    code = end_of(words)
    assert code in (None, 0) or words == COMMANDS["an error"]
    text = raw.getvalue().decode("ascii")
    assert "\\u2026" not in text
    if words[0] == "report":
        assert re.search(r"\d\d\.\d\d", text)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize("words", [COMMANDS[name] for name in ("train", "evaluate", "report", "data", "help")], ids=str)
def test_a_stream_that_is_closed_is_not_missed(closed, words, place, monkeypatch):
    """Python has None for a stream that was closed when it started."""
    monkeypatch.setattr(sys, closed, None)
    assert end_of(words) in (None, 0)
    if words == COMMANDS["train"]:
        assert (place / "new" / "result.json").exists()


@pytest.mark.parametrize("closing", ["2>&-", ">&-", ">&- 2>&-", "<&-", "> /dev/full"])
def test_a_shell_may_close_streams(closing, tmp_path):
    command = f"{shlex.quote(sys.executable)} -m isda --version {closing}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == ("full" in closing)


def test_letters_that_a_terminal_lacks_have_a_spelling(monkeypatch):
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with prepare_console():
        print("λ = 0.5 ± 0.1, −1…3, é")
    assert raw.getvalue() == b"lambda = 0.5 +- 0.1, -1.3, \\xe9\n"


def test_a_warning_is_one_line_without_a_line_of_code():
    with prepare_console():
        told = warnings.formatwarning("two\nlines, \x1b[31mred", UserWarning, "file.py", 3)
    assert told == "isda: warning: two lines, \\x1b[31mred\n"
    assert "isda: warning" not in warnings.formatwarning("plain", UserWarning, "file.py", 3)


@pytest.fixture
def escapes(tmp_path):
    """A data set whose names would colour a terminal, or clear it."""
    images, labels = np.arange(40 * 64).reshape(40, 8, 8).astype(np.uint8), np.arange(40) % 2
    path = tmp_path / "\x1b[31mred.npz"
    parts = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(path, **parts, classes=np.array(["\x1b[2Jclear", "\x07bell"]))
    return path


def test_names_with_escapes_do_nothing_to_a_terminal(escapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(digits().x_test[0, 0].numpy()).save("digit.png")
    small = ["--batch-size", "10", "--width", "0.25", "--epochs", "1", "--augment", "none"]
    for words in (
        ["data", escapes],
        ["data", "--data-root", tmp_path],
        ["train", "--data", escapes, *small, "--out", "run"],
        ["evaluate", "run"],
        ["predict", "run", "digit.png"],
        ["report", "run", "--title", "\x1b[31mred"],
        ["evaluate", "run", "--data", "digits"],
        ["report", "\x1b[31mnowhere"],
    ):
        out, err, code = isda(*words)
        assert "\x1b" not in f"{out}{err}{code}"
        assert "\x07" not in f"{out}{err}{code}"
        assert (code is None) == (words[-1] not in ("digits", "\x1b[31mnowhere")), code


def interrupted_after(seconds, folder):
    """The status and the complaints of a command that gets Ctrl-C some time after its process has begun."""
    words = [sys.executable, "-c", SCRIPT, "train", *SMALL_WORDS, "--epochs", "100000", "--out", "run"]
    process = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    return process.returncode, err.decode()


def check_interruptions(moments, folder):
    for number, seconds in enumerate(moments):
        (folder / str(number)).mkdir()
        status, err = interrupted_after(seconds, folder / str(number))
        assert "Traceback" not in err, (seconds, err)
        assert status in (130, -signal.SIGINT), (seconds, status, err)
        assert all(line.startswith("isda: ") for line in err.splitlines()), (seconds, err)


def test_an_interruption_while_importing_is_quiet(tmp_path):
    check_interruptions([0.02, 0.3, 1.0], tmp_path)


@pytest.mark.slow
def test_interruptions_at_eight_moments_are_quiet(tmp_path):
    chance = random.Random(0)
    check_interruptions([chance.uniform(0, 3) for _ in range(8)], tmp_path)


@pytest.mark.parametrize("columns", ["1", "7", "0"])
def test_help_ends_in_a_terminal_of_any_width(columns, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "isda", "train", "--help"],
        env=ENVIRONMENT | {"COLUMNS": columns},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0
    assert "--epochs" in done.stdout


def test_the_environment_is_as_it_was_after_a_command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1")
    isda("train", "--help", "--debug")
    assert os.environ["COLUMNS"] == "1"
    assert "ISDA_DEBUG" not in os.environ
