"""The front door: help, version, completion, and how commands end."""

import shutil
import subprocess
import sys
from inspect import getdoc

import pytest

import isda as package
from isda.lab.cli.main import COMMANDS, GROUPS, HIDDEN, command
from isda.lab.cli.tasks import command_task
from small_runs import isda


def one_line(text):
    """A text whose lines are not broken."""
    return " ".join(text.split())


def test_the_version_is_said():
    assert isda("--version") == (f"isda {package.__version__}\n", "", None)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_help_says_of_each_command_what_the_command_says_of_itself(name):
    assert getdoc(command(name)).splitlines()[0] == COMMANDS[name]
    assert (COMMANDS[name] in one_line(isda("--help")[0])) == (name not in HIDDEN)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in GROUPS.items() for name in names])
def test_help_of_a_group_says_what_its_commands_say_of_themselves(group, name):
    assert getdoc(command(f"{group}.{name}")).splitlines()[0] == GROUPS[group][name]
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


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("completion", *GROUPS)])
def test_help_does_not_speak_of_none_as_a_choice(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    out, _, code = isda(name, "--help")
    assert code == 0
    assert "{None}" not in out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(shell):
    out, _, code = isda("completion", shell)
    assert code in (0, None)
    assert all(word in out for word in ("evaluate", "checkpoint-minutes", "lambda-0", "--help-all"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("isda cla", ["classify"]),
        ("isda segment pre", ["predict"]),
        ("isda train --opt", ["--optimiser", "--optimizer"]),
        ("isda segment train --image-s", ["--image-size"]),
        ("isda train --help-", ["--help-all"]),
        ("isda classify a.csv --bound ti", ["tilted"]),
        ("isda completion z", ["zsh"]),
    ],
)
def test_bash_completes_commands_options_aliases_and_values(line, expected, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "script").write_text(isda("completion", "bash")[0])
    words = line.split(" ")
    call = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _isda; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"source {tmp_path / 'script'}; {call}"], capture_output=True, text=True)
    assert (done.stderr, sorted(done.stdout.split())) == ("", expected)


def test_semi_supervised_methods_have_further_options(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert "--labelled-per-batch" not in isda("train", "--help")[0]
    assert "--labelled-per-batch" in isda("train", "--method", "vat", "--help")[0]
    assert "--labelled-per-batch" in isda("compare", "--methods", "isda", "vat+isda", "--help")[0]


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ([], "classification"),
        (["--method", "isda:decay=0.9"], "classification"),
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
            "must be a subclass of isda.lab.methods.ClassificationMethod",
        ),
    ],
)
def test_a_word_that_is_not_known_ends_in_one_sentence(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, code = isda("train", *words)
    assert sentence in code
    assert not list(tmp_path.iterdir())
