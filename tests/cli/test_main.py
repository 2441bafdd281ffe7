"""The front door: help, version, and how commands end."""

import subprocess
import sys
from inspect import getdoc

import pytest

import isda as package
from isda.lab.cli.main import GROUPS, SECTIONS, command
from isda.lab.cli.tasks import command_task
from small_runs import isda

COMMANDS = {name: summary for part in SECTIONS.values() for name, summary in part.items()}


def one_line(text):
    """A text whose lines are not broken."""
    return " ".join(text.split())


def test_the_version_is_said():
    assert isda("--version") == (f"isda {package.__version__}\n", "", None)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_help_says_of_each_command_what_the_command_says_of_itself(name):
    assert getdoc(command(name)).splitlines()[0] == COMMANDS[name]
    assert COMMANDS[name] in one_line(isda("--help")[0])
    out, _, code = isda(name, "--help")
    assert (code, COMMANDS[name].split()[0] in out) == (0, True)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in GROUPS.items() for name in names])
def test_help_of_a_group_says_what_its_commands_say_of_themselves(group, name):
    assert getdoc(command(f"{group} {name}")).splitlines()[0] == GROUPS[group][name]
    assert COMMANDS[group] in one_line(isda("--help")[0])
    assert GROUPS[group][name] in one_line(isda(group, "--help")[0])
    assert isda(group) == isda(group, "--help")


def test_an_unknown_command_of_a_group_is_refused_with_the_nearest():
    assert isda("segment", "trian")[2] == "isda: no command 'segment trian'; did you mean 'train'?"


def test_help_and_version_do_not_wait_for_torch():
    code = "from isda.lab.cli import main; main(['--version']); main(['--help'])"
    code += "; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


def test_semi_supervised_methods_have_further_options(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert "--labelled-per-batch" not in isda("train", "--help")[0]
    assert "--labelled-per-batch" in isda("train", "--method", "vat", "--help")[0]
    assert "--labelled-per-batch" in isda("compare", "--methods", "isda", "vat+isda", "--help")[0]


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ([], "classification"),
        (["--method", "isda:memory=30"], "classification"),
        (["--methods", "cross-entropy", "supervised"], "semi-supervised"),
        (["--method=mean-teacher+isda"], "semi-supervised"),
        (["--task", "semi-supervised"], "semi-supervised"),
        (["--method"], "classification"),
    ],
)
def test_the_words_decide_the_task(words, task):
    assert command_task(words).task.name == task


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "isad"], "got 'isad'; did you mean 'isda'?"),
        (["--task", "segmentatoin"], "got 'segmentatoin'; did you mean 'segmentation'?"),
        (["--task", "nowhere:Task"], "task 'nowhere:Task' could not be loaded: No module named 'nowhere'"),
        (
            ["--task", "isda.lab.engine:Job"],
            "task 'isda.lab.engine:Job' must be a subclass of isda.lab.engine.Task, got Job",
        ),
        (
            ["--method", "isda.lab.engine.Method"],
            "must be a subclass of isda.lab.methods.",
        ),
    ],
)
def test_a_word_that_is_not_known_ends_in_one_sentence(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, code = isda("train", *words)
    assert sentence in code
    assert not list(tmp_path.iterdir())
