"""Run folders with damaged files: every command says in one sentence which file it cannot use, or does without it."""

import json
import shutil

import pytest
from PIL import Image

from small_runs import digits, isda

COMMANDS = ("report", "evaluate", "predict", "train")
FILES = ("config.json", "environment.json", "metrics.jsonl", "result.json", "model.safetensors", ".lock")
DAMAGES = {
    "empty": lambda raw: b"",
    "truncated": lambda raw: raw[: len(raw) // 2],
    "a list": lambda raw: b"[]",
    "an empty object": lambda raw: b"{}",
    "no text": lambda raw: bytes(range(128, 256)),
}


@pytest.fixture
def damaged(finished_run, tmp_path):
    """A copy of a finished run whose file gets another content."""

    def damage(name, content):
        folder = shutil.copytree(finished_run, tmp_path / "run", dirs_exist_ok=True)
        (folder / name).write_bytes(content)
        return folder

    return damage


def run_command(command, folder):
    if command == "train":
        return isda("train", "--resume", "--out", folder)
    if command == "report":
        return isda("report", folder, "--out", folder / "report.html")
    if command == "predict":
        image = folder.parent / "digit.png"
        Image.fromarray(digits().x_test[0, 0].numpy()).save(image)
        return isda("predict", folder, image)
    return isda(command, folder)


def check_sentence(code, *names):
    """Success, or one sentence that holds one of the names."""
    if code is not None:
        assert str(code).startswith("isda: ")
        assert "\n" not in str(code)
        assert any(name in str(code) for name in names), code


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(damaged, finished_run, name, damage, command):
    folder = damaged(name, DAMAGES[damage]((finished_run / name).read_bytes()))
    _, _, code = run_command(command, folder)
    check_sentence(code, str(folder / name))
    needed = {"config.json": COMMANDS, "model.safetensors": ("evaluate", "predict")}
    if command in needed.get(name, ()):
        assert code is not None


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no run in "),
        ("result.json", "is not finished; go on with"),
        ("model.safetensors", "model.safetensors does not hold the weights of fast-cnn: No such file"),
    ],
)
def test_a_deleted_file_is_missed(damaged, finished_run, name, message, command):
    folder = damaged(name, b"")
    (folder / name).unlink()
    assert message in str(run_command(command, folder)[2])


@pytest.mark.parametrize(
    "change",
    [
        {"task": "text"},
        {"task": ["classification"]},
        {"network": "text"},
        {"classes": []},
        {"classes": [None]},
        {"mean": [None]},
        {"mean": []},
        {"std": [None]},
        {"std": "text"},
        {"image_size": "text"},
        {"image_size": []},
        {"image_size": [8, None]},
        {"image_size": -1},
        {"network_options": {"num_classes": 3}},
        {"network_options": {"width": "wide"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_wrong_types_and_values_in_the_configuration_are_named(damaged, finished_run, command, change):
    stored = json.loads((finished_run / "config.json").read_text())
    del stored["sha256"]  # or any change is noticed by that
    folder = damaged("config.json", json.dumps(stored | change).encode())
    _, _, code = run_command(command, folder)
    assert code is not None
    # Weights of another shape may be noticed first.
    check_sentence(code, str(folder / "config.json"), str(folder / "model.safetensors"))
