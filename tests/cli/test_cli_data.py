"""`isda data`: the table, its JSON, the contact sheet, and that it runs on its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import isda.lab.data
from isda.lab.cli.info import data
from isda.lab.data.display import contact_sheet


def run(*arguments):
    tyro.cli(data, args=[str(argument) for argument in arguments])


def write_npz(path):
    image = np.zeros((3, 6, 7), np.uint8)
    np.savez(path, x_train=image, y_train=[0, 1, 0], x_test=image[:1], y_test=[1], classes=["cat", "dog"])


def test_it_runs_without_arguments(tmp_path):
    command = [sys.executable, "-c", "from isda.lab.cli.info import data; data()"]
    environment = os.environ | {"ISDA_DATA": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path) in "".join(done.stdout.split())  # the title is as wide as the table
    for name in isda.lab.data.CATALOGUE:
        assert name in done.stdout


def test_the_table_as_json_says_what_is_found_and_what_is_wanted(tmp_path, capsys):
    write_npz(tmp_path / "pets.npz")
    write_npz(tmp_path / "cifar10.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    run("--data-root", tmp_path, "--json", tmp_path / "out" / "table.json")
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    sets = {row["name"]: row for row in table["sets"]}
    assert table["root"] == str(tmp_path)
    assert sets["digits"]["found"]
    assert sets["digits"]["train"] == 1297
    assert not sets["cifar100"]["found"]
    assert "cifar-100-python.tar.gz" in sets["cifar100"]["wanted"]
    assert str(tmp_path / "cifar100") in sets["cifar100"]["wanted"]
    assert sets["imagenet"]["image_size"] is None
    # Counted, not the published numbers.
    for name in ("pets", "cifar10"):
        row = sets[name]
        assert (row["train"], row["test"], row["classes"], row["channels"], row["image_size"]) == (3, 1, 2, 1, [6, 7])
    assert not sets["broken"]["found"]
    assert "damaged" in sets["broken"]["wanted"]
    printed = capsys.readouterr().out
    assert "pets" in printed
    assert "not found" in printed


def test_a_named_set_is_loaded_and_described(tmp_path, capsys):
    write_npz(tmp_path / "pets.npz")
    run("pets", "--data-root", tmp_path, "--json", tmp_path / "pets.json")
    (row,) = json.loads((tmp_path / "pets.json").read_text())["sets"]
    assert row["class_names"] == ["cat", "dog"]
    assert row["train_per_class"] == [2, 1]
    assert row["mean"] == [0.0]
    assert "cat 2, dog 1" in capsys.readouterr().out


def test_names_in_brackets_are_printed_as_they_are(tmp_path, capsys):
    write_npz(tmp_path / "[bold]pets.npz")
    run("--data-root", tmp_path)
    assert "[bold]pets" in capsys.readouterr().out


def test_the_contact_sheet_has_a_row_per_class(tmp_path):
    run("digits", "--data-root", tmp_path, "--show", tmp_path / "sheets" / "digits.png")
    with Image.open(tmp_path / "sheets" / "digits.png") as image:
        width, height = image.size
    # 10 rows and 12 columns of 64 pixels, and room for the names.
    assert height > 10 * 64
    assert width > 12 * 64


def test_each_row_of_the_sheet_shows_its_class():
    digits = isda.lab.data.load("digits")
    sheet, names = contact_sheet(digits, columns=3)
    assert names == list(digits.classes)
    for label in range(10):
        members = (digits.y_train == label).nonzero().flatten()
        for column in range(3):
            top, left = 2 + label * 66, 2 + column * 66
            expected = digits.x_train[members[column]].repeat_interleave(8, 1).repeat_interleave(8, 2)
            assert torch.equal(sheet[:, top : top + 64, left : left + 64], expected.expand(3, -1, -1))


def test_a_sheet_of_many_classes_of_large_images_is_thinned_and_reduced():
    labels = torch.arange(250)
    images = labels.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 80, 100)
    many = isda.lab.data.DataSet("many", images, labels, images, labels, classes=tuple(f"c{i}" for i in range(250)))
    sheet, names = contact_sheet(many, columns=1)
    assert names[:3] == ["c0", "c2", "c5"]
    assert sheet.shape == (3, 100 * 66 + 2, 68)
    assert sheet[:, 2 + 66 * 2 : 66 * 3, 2:66].unique().tolist() == [5]


def test_a_contact_sheet_needs_a_name(tmp_path):
    with pytest.raises(ValueError, match="show needs the name of a data set"):
        run("--show", tmp_path / "sheet.png")
