"""How a command ends when something fails: our sentences, whose code failed otherwise, and the traceback on demand."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import isda.lab.cli.info as networks_command
from isda._utils.errors import describe_error, is_package_error
from isda.lab.engine.options import import_class
from small_runs import SMALL_WORDS, isda, train_small


def raised(function):
    with pytest.raises(Exception) as caught:
        function()
    # From the function on: as in a command, none of whose frames are the caller's.
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


def code_of_ours(source):
    """A function of a module that says it is one of this package."""
    names = {"__name__": "isda.somewhere", "np": np, "torch": torch}
    exec(compile(f"def act():\n    {source}", "<ours>", "exec"), names)
    return names["act"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("[].pop()", "internal error: IndexError: pop from empty list"),
        ("int('x')", "internal error: ValueError: invalid literal for int() with base 10: 'x'"),
        ("raise KeyError('x')", "internal error: KeyError: 'x'"),
        ("raise RuntimeError", "internal error: RuntimeError"),
        ("np.linalg.inv(np.zeros((2, 2)))", "internal error: in numpy: LinAlgError: Singular matrix"),
        ("torch.optim.SGD([], lr=0.1)", "internal error: in torch: ValueError: optimizer got an empty parameter list"),
        ("raise ValueError('x must be 1, got 2')", "x must be 1, got 2"),
        ("open('/nowhere/at/all')", "[Errno 2] No such file or directory: '/nowhere/at/all'"),
        ("raise MemoryError", "out of memory: MemoryError; choose a smaller batch, network or data set"),
    ],
)
def test_one_line_says_whose_error_it_is(source, sentence):
    error = raised(code_of_ours(source))
    assert describe_error(error) == sentence
    assert is_package_error(error) == ("must be" in sentence)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_memory_that_no_machine_has_is_called_so(library):
    source = {"numpy": "np.zeros(2**58)", "torch": "torch.empty(2**56)"}[library]
    assert describe_error(raised(code_of_ours(source))).startswith("out of memory: ")


def test_an_error_that_was_raised_again_is_still_whose_it_was():
    again = "try:\n        int('x')\n    except ValueError:\n        raise"
    assert not is_package_error(raised(code_of_ours(again)))
    named = "try:\n        int('x')\n    except ValueError as error:\n        raise ValueError('a sentence') from error"
    assert is_package_error(raised(code_of_ours(named)))


def test_a_command_ends_in_one_line(monkeypatch):
    monkeypatch.setattr(networks_command, "networks", code_of_ours("[].pop()"))
    out, err, code = isda("networks")
    hint = "; run again with --debug for the traceback"
    assert (out, err, code) == ("", "", f"isda: internal error: IndexError: pop from empty list{hint}")


@pytest.mark.parametrize("way", ["first", "last", "environment"])
def test_the_traceback_is_shown_on_demand(way, monkeypatch):
    monkeypatch.setattr(networks_command, "networks", code_of_ours("[].pop()"))
    if way == "environment":
        monkeypatch.setenv("ISDA_DEBUG", "1")
    _, err, code = isda(*{"first": ["--debug", "networks"], "last": ["networks", "--debug"]}.get(way, ["networks"]))
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("IndexError: pop from empty list\n")
    assert code == "isda: internal error: IndexError: pop from empty list"


def test_the_status_of_an_internal_error_is_one(tmp_path):
    change = "import isda.lab.cli.info as n; n.networks = lambda: [].pop()"
    script = f"{change}; from isda.lab.cli import main; main(['networks'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


MINE = """
from isda.lab.engine import Hook
from isda.lab.methods.base import CrossEntropy

class Fails(Hook):
    def step(self, step):
        {}["nothing"]

class Refuses(CrossEntropy):
    def forward(self, forward, batch):
        raise ValueError("mine is not yours")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_fails.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("mine_fails", "broken"):
        sys.modules.pop(name, None)


def test_code_of_the_user_is_named_by_file_and_line(mine):
    _, _, code = train_small(mine / "run", "--hook", "mine_fails:Fails")
    assert f"isda: in {mine / 'mine_fails.py'}, line 7: KeyError: 'nothing'; run again" in code
    assert "KeyError: 'nothing'" in (mine / "run" / "error.txt").read_text()


def test_a_module_that_is_no_python_is_named(mine):
    _, _, code = train_small(mine / "run", "--hook", "broken:Hook")
    assert code.startswith(
        f"isda: hook 'broken:Hook' could not be loaded: in {mine / 'broken.py'}, line 1: SyntaxError"
    )


def test_the_current_folder_is_searched_for_the_time_of_a_command_only(mine):
    before = list(sys.path)
    train_small(mine / "run", "--hook", "mine_fails:Fails")
    with pytest.raises(ValueError, match="could not be loaded"):
        import_class("broken:Hook", object, "hook")
    assert sys.path == before


def test_worker_processes_tell_whose_error_it_was(mine):
    words = ["--methods", "mine_fails.Refuses", "cross-entropy", "--seeds", "1", "--out", "all", "--epochs", "1"]
    _, _, code = isda("compare", *SMALL_WORDS, *words)
    assert f"in {mine / 'mine_fails.py'}, line 11: ValueError: mine is not yours; the traceback is in error.txt" in code
    (kept,) = mine.glob("all/*/seed-0/error.txt")
    assert "mine is not yours" in kept.read_text()


def test_a_run_that_is_resumed_loses_the_traceback_of_its_failure(mine):
    train_small(mine / "run", "--hook", "mine_fails:Fails")
    assert (mine / "run" / "error.txt").exists()
    _, _, code = train_small(mine / "run", "--resume")
    assert code is None
    assert not (mine / "run" / "error.txt").exists()


def test_a_folder_of_another_run_gets_no_traceback(tmp_path):
    assert train_small(tmp_path)[2] is None
    assert "holds a run with" in train_small(tmp_path, "--resume", "--lr", "0.3")[2]
    assert not (tmp_path / "error.txt").exists()


def test_a_table_in_place_of_weights_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "table.csv").write_text("label,a,b\ncat,1,2\n")
    _, _, code = train_small(tmp_path / "run", "--network", "timm:test_resnet", "--pretrained", tmp_path / "table.csv")
    assert code.startswith(f"isda: {tmp_path / 'table.csv'} cannot be read as weights: it must be a file of ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["map", "nowhere", "--seed", "9223372036854775808"], "isda: seed must be from 0 to 4294967295, got 9223372"),
        (["map", "nowhere", "--seed", "-1"], "isda: seed must be from 0 to 4294967295, got -1"),
        (["tightness", "nowhere", "--draws", "9223372036854775808"], "isda: draws must be at most 1000000, got 922"),
    ],
)
def test_numbers_that_a_library_cannot_hold_are_refused_first(words, sentence):
    assert isda(*words)[2].startswith(sentence)
