"""Help texts: sections, defaults, short and complete; other names of options; nothing heavy is imported for them."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Literal

import pytest
import tyro

from isda.lab.cli.help import FEW, GENERAL, options_of, without_aliases
from isda.lab.cli.main import COMMANDS, GROUPS, HIDDEN, SECTIONS, command
from isda.lab.cli.runtime_options import REGISTRY
from isda.lab.cli.tasks import IMAGE_SETTINGS, command_task
from isda.lab.engine import find_task
from isda.lab.engine.options import import_class
from isda.lab.engine.settings import RunSettings
from isda.lab.networks.generative import NOISE_DIM
from isda.lab.tasks.gan.settings import GANSettings
from isda.lab.train import IMAGE_TASKS, Settings, resolve
from small_runs import SMALL_WORDS, digits, isda

ALL = [name for name in COMMANDS if name not in GROUPS] + [
    f"{group}.{name}" for group in GROUPS for name in GROUPS[group]
]
TASKS = ("classification", "semi-supervised", "segmentation", "detection", "generation")


def test_help_completion_and_refused_options_do_not_import_torch(tmp_path):
    script = f"""
import contextlib, io, sys
from isda.lab.cli import main
names = {ALL!r}
lines = [[*name.split("."), word] for name in names for word in ("--help", "--help-all", "--nothing")]
lines += [["segment", "train", "--method", "isad"], ["detect", "compare", "--methods", "multi"]]
lines += [["generate", "train", "--method", "gna"]]
lines += [["train", "--method", "isad"], ["train", "--method", "vat", "--help"], ["completion", "bash"], ["nothing"]]
for words in lines:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(words)
        except SystemExit:
            pass
    loaded = {{"torch", "numpy", "rich", "scipy"}} & set(sys.modules)
    assert not loaded, (words, loaded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ALL)
def test_the_complete_help_has_every_option_of_the_parser(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")  # wider ones have the options in two columns
    function = command(name)
    with pytest.raises(SystemExit):
        tyro.cli(function, args=["--help"], registry=REGISTRY)
    parsed = set(re.findall(r"^(?:│|\|| ) (?:-h, )?--(\w[\w-]*)", capsys.readouterr().out, re.MULTILINE)) - {"help"}
    options = {option.name: option for option in options_of(function) if not option.positional}
    assert set(options) == parsed
    complete = isda(*name.split("."), "--help-all")[0]
    assert all(option.words in complete for option in options.values())
    assert all(option.text for option in options.values())


@pytest.mark.parametrize(
    "name", ["train", "compare", "tune", "study", "segment.train", "detect.train", "generate.train"]
)
def test_the_short_help_is_shorter_and_says_what_it_leaves_out(name):
    short, _, code = isda(*name.split("."), "--help")
    complete = isda(*name.split("."), "--help-all")[0]
    options = options_of(command(name))
    several = "methods" in {option.name for option in options}
    rare = [option for option in options if option.rare or (several and option.name == "method")]
    assert code == 0
    assert len(options) > FEW
    assert f"{len(rare)} further options: isda {name.replace('.', ' ')} --help-all" in " ".join(short.split())
    assert not any(f"  {option.words.split()[0]} " in short for option in rare)
    assert "further options: " not in complete


def test_metavars_say_what_is_typed():
    def example(
        run: tyro.conf.Positional[Path],
        *,
        lr: float = 0.1,
        lambda_0: float | Literal["auto"] | None = None,
        classes: tuple[str, ...] = (),
        pair: tuple[int, float] = (1, 2.0),
        bound: Literal["jensen", "tilted"] = "jensen",
        network_title: str = "",
        open: bool = True,
    ) -> None:
        """Do nothing."""

    assert [option.words for option in options_of(example)] == [
        *("RUN", "--lr X", "--lambda-0 X|auto", "--classes CLASS [CLASS ...]", "--pair N X"),
        *("--bound {jensen,tilted}", "--network-title TITLE", "--no-open"),
    ]


def test_options_stand_in_sections():
    sections = [line for line in isda("train", "--help")[0].splitlines() if re.fullmatch(r"[A-Z][\w ]+", line)]
    assert sections == [GENERAL, "Data", "Network", "Method", "Training", "Data folder and machine"]


def test_defaults_are_those_of_a_run_without_options():
    shown = {option.name.replace("-", "_"): option.default for option in options_of(command("train"))}
    config = resolve(Settings(), digits())
    names = ("data", "method", "seed", "scale", "precision", "evaluate_every", "held_out")
    assert {name: shown[name] for name in names} == {name: str(getattr(config, name)) for name in names}
    assert shown["network"].startswith(config.network)


@pytest.mark.parametrize("width", ["40", "60", "100"])
def test_help_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    for words in (["--help"], ["train", "--help-all"], ["segment", "--help"], ["reproduce", "--help"]):
        options = [
            line for line in isda(*words)[0].splitlines() if not line.startswith(("usage", "  isda", "  torchrun"))
        ]
        assert max(len(line) for line in options if len(line.split()) > 2) <= int(width)


def test_help_lists_the_commands_in_sections_and_not_the_internal_ones():
    lines = isda("--help")[0].splitlines()
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    listed = [line.split()[0] for line in lines if re.match(r"  \w", line)]
    assert listed == [name for part in SECTIONS.values() for name in part]
    assert not set(HIDDEN) & set(listed)
    assert list(HIDDEN) == ["run"]


# -- other names of options --------------------------------------------------------------------------------------------


def parsed(name, *words):
    """The settings that a command would get."""
    function, values = command(name, words), {}

    @wraps(function)
    def read(**given):
        values.update(given)

    words = without_aliases(words, options_of(function))
    tyro.cli(read, args=words, registry=REGISTRY, console_outputs=False)
    return values["settings"]


@pytest.mark.parametrize(
    ("name", "words", "setting", "value"),
    [
        ("train", "--optimizer adamw", "optimiser", "adamw"),
        ("train", "--learning-rate 0.05", "lr", 0.05),
        ("train", "--learning_rate=0.05", "lr", 0.05),
        ("compare", "--image-size 64", "input_size", 64),
        ("segment.train", "--image-size 180x240", "crop", "180x240"),
        ("detect.train", "--image-size 320", "min_size", 320),
        ("train", "--val-size 500", "held_out", 500),
        ("tune", "--warmup-epochs 0.5", "warm_up", "0.5"),
        ("train", "--precision bf16", "precision", "bfloat16"),
        ("generate.train", "--precision=bf16", "precision", "bfloat16"),
        ("train", "--network bf16", "network", "bf16"),
    ],
)
def test_names_that_people_type_are_understood(name, words, setting, value):
    assert getattr(parsed(name, *words.split()), setting) == value


def test_an_option_of_the_command_itself_is_left_alone():
    words = ["--image-size", "64", "--data", "digits"]
    assert without_aliases(words, options_of(command("embed"))) == words


def test_a_run_is_stored_and_resumed_under_the_other_names(tmp_path):
    words = ["train", *SMALL_WORDS, "--out", tmp_path / "run", "--learning-rate", "0.05", "--precision=fp64"]
    assert isda(*words, "--optimizer", "sgd")[2] is None
    config = (tmp_path / "run" / "config.json").read_text()
    assert '"lr": 0.05' in config
    assert '"precision": "float64"' in config
    assert "finished already" in isda(*words, "--optimizer", "sgd", "--resume")[0]
    assert "lr" in isda("train", "--out", tmp_path / "run", "--resume", "--learning-rate", "0.07")[2]


# -- what is stated without torch is what the tasks say ----------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_the_methods_of_a_task_are_summarised(name):
    task = find_task(name)
    summaries = task.settings_type.method_summaries
    assert set(summaries) == set(task.methods())
    assert all(8 < len(line) < 90 and not line.endswith(".") for line in summaries.values())


def test_the_tasks_of_isda_train_are_stated():
    assert tuple(IMAGE_SETTINGS) == IMAGE_TASKS
    for name, path in IMAGE_SETTINGS.items():
        assert import_class(path, RunSettings, "settings") is find_task(name).settings_type
    for name in IMAGE_SETTINGS:
        known = find_task(name).methods()
        compared = tuple(method for method in find_task(name).default_methods if method in known) or tuple(known)
        assert set(command_task(["--task", name]).compared) == set(compared)


def test_the_noise_of_generators_is_that_of_their_networks():
    assert GANSettings().noise == NOISE_DIM
    assert replace(GANSettings(), noise=3).given() == {"noise": 3}
