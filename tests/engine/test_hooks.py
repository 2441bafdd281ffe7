"""Hooks: called in the documented order, closed also after an error, and loaded by name on the command line."""

import json

import pytest

from isda.lab.engine.callbacks import load_hook
from isda.lab.train import Hook, NonFiniteLoss, Saving, train
from small_runs import digits, small_config, train_small

MODULE = """
from isda.lab.train import Hook

class Diary(Hook):
    def start(self, config, folder, step):
        self.pages = [f"start {config.method} {step}"]
        self.folder = folder
    def step(self, step):
        self.pages.append(f"step {step}")
    def epoch(self, metrics):
        self.pages.append(f"epoch {metrics['epoch']}")
    def finish(self, result):
        self.pages.append(f"finish {result['epochs']}")
    def close(self):
        (self.folder / "diary.txt").write_text("\\n".join(self.pages))

class NeedsInk(Hook):
    def __init__(self, ink):
        self.ink = ink

class Pen:
    pass
"""


class Diary(Hook):
    def __init__(self):
        self.pages = []

    def start(self, config, folder, step):
        self.pages.append(("start", config, folder, step))

    def step(self, step):
        self.pages.append(("step", step))

    def epoch(self, metrics):
        self.pages.append(("epoch", metrics))

    def finish(self, result):
        self.pages.append(("finish", result))

    def close(self):
        self.pages.append(("close",))


class Failing(Hook):
    def __init__(self, at):
        self.at = at

    def step(self, step):
        if step == self.at:
            raise RuntimeError("enough")


@pytest.fixture
def modules(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "diaries.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)


def test_a_hook_hears_of_everything_in_order(tmp_path):
    diary, config = Diary(), small_config()
    result = train(config, digits(), tmp_path / "run", hooks=[diary])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert diary.pages == [
        ("start", config, tmp_path / "run", 0),
        *(("step", step) for step in range(1, 6)),
        ("epoch", lines[0]),
        *(("step", step) for step in range(6, 11)),
        ("epoch", lines[1]),
        ("finish", result),
        ("close",),
    ]
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())


def test_several_hooks_take_turns(tmp_path):
    heard = []

    def speaker(name):
        hook = Hook()
        hook.epoch = lambda metrics: heard.append((name, metrics["epoch"]))
        return hook

    train(small_config(), digits(), tmp_path, hooks=[speaker("a"), speaker("b")])
    assert heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_hook_that_does_nothing_changes_nothing(tmp_path):
    results = [
        train(small_config(), digits(), tmp_path / name, hooks=hooks) for name, hooks in (("a", []), ("b", [Hook()]))
    ]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


def test_an_error_closes_the_hooks_and_a_resumed_run_says_where_it_starts(tmp_path):
    diary = Diary()
    with pytest.raises(RuntimeError, match="enough"):
        train(small_config(), digits(), tmp_path, hooks=[diary, Failing(at=8)], saving=Saving(steps=3))
    assert [page[0] for page in diary.pages[-2:]] == ["step", "close"]
    assert "finish" not in [page[0] for page in diary.pages]
    again = Diary()
    train(small_config(), digits(), tmp_path, hooks=[again])
    assert again.pages[0][3] == 6
    assert [page[1] for page in again.pages if page[0] == "step"] == [7, 8, 9, 10]
    assert [page[1]["epoch"] for page in again.pages if page[0] == "epoch"] == [2]


def test_a_loss_that_is_no_number_closes_the_hooks(tmp_path):
    diary = Diary()
    with pytest.raises(NonFiniteLoss, match="step 2"):
        train(small_config(method="cross-entropy", lr=1e30), digits(), tmp_path, hooks=[diary])
    assert [page[0] for page in diary.pages] == ["start", "step", "close"]


def test_a_hook_is_found_by_its_name(modules):
    assert type(load_hook("diaries:Diary")).__name__ == "Diary"
    assert isinstance(load_hook("isda.lab.train:Hook"), Hook)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("diaries", "hook must be written package.module:Class, got 'diaries'"),
        ("diarees:Diary", "hook 'diarees:Diary' could not be loaded: No module named 'diarees'"),
        ("diaries:Dairy", "hook 'diaries:Dairy' could not be loaded: module 'diaries' has no attribute 'Dairy'"),
        ("diaries:Pen", "hook 'diaries:Pen' must be a subclass of isda.lab.engine.Hook, got Pen"),
    ],
)
def test_what_is_no_hook_is_refused(name, message, modules):
    with pytest.raises(ValueError, match=message):
        load_hook(name)


@pytest.mark.parametrize("name", ["diaries:NeedsInk", ":Diary"])
def test_what_cannot_be_made_is_refused_by_name(name, modules):
    with pytest.raises(ValueError, match=f"hook .*{name}"):
        load_hook(name)


def test_the_command_line_takes_hooks(modules, tmp_path):
    _, _, code = train_small(tmp_path / "run", "--hook", "diaries:Diary", "isda.lab.train:Hook")
    assert code is None
    pages = (tmp_path / "run" / "diary.txt").read_text().splitlines()
    assert pages[0] == "start isda 0"
    assert pages[-2:] == ["epoch 2", "finish 2"]


def test_a_hook_that_cannot_be_loaded_stops_the_command_before_it_writes(modules, tmp_path):
    _, _, code = train_small(tmp_path / "run", "--hook", "diaries:Dairy")
    assert code == "isda: hook 'diaries:Dairy' could not be loaded: module 'diaries' has no attribute 'Dairy'"
    assert not (tmp_path / "run").exists()
