"""Run folders with damaged files: every command says in one sentence which file it cannot use, or does without it."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.data import ZCAWhitening
from isda.lab.engine.comparison import run_folder_name
from isda.lab.engine.digests import with_digest
from isda.lab.engine.run_folder import folder_lock
from isda.lab.train import train
from small_runs import SMALL_WORDS, digits, isda, small_config

COMMANDS = ("report", "evaluate", "predict", "train")
FILES = (
    *("config.json", "environment.json", "metrics.jsonl", "result.json", "model.safetensors", ".lock"),
    "predictions.safetensors",
)
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
    needed = {
        "config.json": COMMANDS,
        "model.safetensors": ("evaluate", "predict"),
        "predictions.safetensors": ("report", "train"),
    }
    if command in needed.get(name, ()):
        assert code is not None


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no run in "),
        ("result.json", "is not finished; resume it with"),
        ("model.safetensors", "model.safetensors does not hold the weights of fast-cnn: No such file"),
    ],
)
def test_a_deleted_file_is_missed(damaged, finished_run, name, message, command):
    folder = damaged(name, b"")
    (folder / name).unlink()
    assert message in str(run_command(command, folder)[2])


@pytest.mark.parametrize(
    ("name", "report", "train"),
    [
        ("config.json", "no run in ", "config.json is missing; remove "),
        ("metrics.jsonl", "metrics.jsonl is missing", "metrics.jsonl is missing; remove "),
        ("model.safetensors", None, "model.safetensors does not hold the weights of the run: No such file; remove "),
        ("environment.json", None, None),
        ("predictions.safetensors", None, None),
        (".lock", None, None),
    ],
)
def test_report_and_resuming_do_without_a_deleted_file_or_miss_it(damaged, name, report, train):
    for command, message in (("report", report), ("train", train)):
        folder = damaged(name, b"")
        (folder / name).unlink()
        code = run_command(command, folder)[2]
        assert code is None if message is None else message in str(code), code


def test_a_run_without_its_result_is_finished_again(damaged, finished_run):
    folder = damaged("result.json", b"")
    for name in ("result.json", "model.safetensors", "metrics.jsonl"):
        (folder / name).unlink()
    assert run_command("train", folder)[2] is None
    result, whole = (json.loads((run / "result.json").read_text()) for run in (folder, finished_run))
    assert result | {"seconds": 0} == whole | {"seconds": 0}
    assert (folder / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("key", ["lr", "mean", "seed", "version", "settings"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_that_could_be_right_is_no_less_damage(damaged, finished_run, command, key):
    """Even where the file was sealed anew: the result knows the configuration that it belongs to."""
    stored = json.loads((finished_run / "config.json").read_text())
    del stored["sha256"]
    stored[key] = {"lr": 0.2, "mean": [0.4], "seed": 1, "version": "9", "settings": stored["settings"] | {"seed": 7}}[
        key
    ]
    for record in (stored, with_digest(stored)):
        folder = damaged("config.json", json.dumps(record).encode())
        code = str(run_command(command, folder)[2])
        assert str(folder / "config.json") in code or f"{folder} holds a run with {key}=" in code or "seed=" in code


@pytest.mark.parametrize("value", ["text", -1, 1e300, float("nan"), None, [1]], ids=str)
@pytest.mark.parametrize("key", ["batch_size", "lr", "method", "network_options", "scale", "data"])
def test_what_was_asked_for_is_read_with_care(damaged, finished_run, key, value):
    stored = json.loads((finished_run / "config.json").read_text())
    del stored["sha256"]
    folder = damaged("config.json", json.dumps(stored | {"settings": stored["settings"] | {key: value}}).encode())
    (folder / "result.json").unlink()
    code = run_command("train", folder)[2]
    # None is how settings are left out.
    assert code is None or str(code).startswith("isda: ")
    assert "\n" not in str(code)


@pytest.mark.parametrize("damage", ["truncated", "altered", "deleted", "of another data set"])
def test_a_damaged_whitening_is_named(damage, tmp_path, monkeypatch):
    images = torch.randint(0, 256, (700, 1, 8, 8), dtype=torch.uint8)
    whitening, path = ZCAWhitening.fit(images), tmp_path / "whitening.safetensors"
    whitening.save(path, "these")
    torch.testing.assert_close(ZCAWhitening.read(path, "these")(images), whitening(images), rtol=0, atol=0)
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    if damage == "deleted":
        path.unlink()
    elif damage != "of another data set":
        path.write_bytes(content if damage == "altered" else content[:-100])
    with pytest.raises(ValueError, match=r"whitening\.safetensors does not hold a whitening: "):
        ZCAWhitening.read(path, "those" if damage == "of another data set" else "these")


def test_evaluate_notices_that_the_data_set_has_changed(tmp_path):
    images, labels = np.arange(60 * 64).reshape(60, 8, 8).astype(np.uint8), np.arange(60) % 3
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = ["--batch-size", 20, "--width", 0.25, "--epochs", 1, "--augment", "none"]
    assert isda("train", "--data", path, *words, "--out", tmp_path / "run")[2] is None
    assert isda("evaluate", tmp_path / "run")[2] is None
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels[::-1])
    assert "mine must be the data set of the run, it has changed since" in isda("evaluate", tmp_path / "run")[2]
    assert isda("evaluate", tmp_path / "run", "--data", path)[2] is None


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two methods, three seeds: the runs that `isda compare` would make."""
    folder = tmp_path_factory.mktemp("comparison")
    for method in ("cross-entropy", "isda"):
        for seed in range(3):
            train(small_config(method=method, seed=seed, epochs=1), digits(), folder / run_folder_name(method, seed))
    return folder


def compare(folder, *words):
    return isda("compare", *SMALL_WORDS, "--epochs", 1, "--out", folder, "--json", "-", *words)


def test_fewer_seeds_or_methods_show_fewer_and_say_what_is_left_out(comparison):
    out, err, code = compare(comparison, "--methods", "cross-entropy", "isda", "--seeds", 1)
    assert code is None
    assert [method["seeds"] for method in json.loads(out)[0]["methods"]] == [1, 1]
    left = "cross-entropy/seed-1, cross-entropy/seed-2, isda/seed-1, isda/seed-2"
    assert f"isda: not shown: 4 other runs in {comparison}: {left}\n" in err
    out, err, code = compare(comparison, "--methods", "isda", "--seeds", 3)
    assert [method["label"] for method in json.loads(out)[0]["methods"]] == ["isda"]
    assert "not shown: 3 other runs" in err
    out, err, code = compare(comparison, "--methods", "cross-entropy", "isda", "--seeds", 3)
    assert [method["seeds"] for method in json.loads(out)[0]["methods"]] == [3, 3]
    assert "left out" not in err


def test_a_comparison_shows_what_was_finished_when_a_run_fails(comparison, tmp_path):
    folder = shutil.copytree(comparison, tmp_path / "runs")
    run = folder / "isda" / "seed-2"
    (run / "result.json").unlink()
    with folder_lock(run):
        out, _, code = compare(folder, "--methods", "cross-entropy", "isda", "--seeds", 3)
    assert [method["seeds"] for method in json.loads(out)[0]["methods"]] == [3, 2]
    assert code.startswith(f"isda: 1 of 6 runs failed: {run}: {run} is being written by process {os.getpid()} on ")


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
