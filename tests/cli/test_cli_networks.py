"""The command line: its list of commands, and `isda networks`."""

import json
import subprocess
import sys

import pytest

from isda.lab import networks
from isda.lab.cli import main


def test_networks_prints_the_table_and_writes_it_as_json(tmp_path, capsys):
    file = tmp_path / "networks.json"
    main(["networks", "--paper", "--json", str(file)])
    printed = capsys.readouterr().out
    records = json.loads(file.read_text())
    assert [record["name"] for record in records] == networks.names()
    for record in records:
        assert record["name"] in printed
    assert "254.20M -0.4%" in printed


def test_networks_lists_names_image_sizes_and_parameters(capsys):
    main(["networks", "--only", "resnet-110", "resnet-50"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("resnet")]
    assert rows == [
        ["resnet-110", "32x32", "1.74M", "253M", "64"],
        ["resnet-50", "224x224", "25.56M", "4,089M", "2048"],
    ]


def test_networks_writes_nothing_but_json_to_a_dash(capsys):
    main(["networks", "--json", "-"])
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["wide-resnet-28-10"]["feature_dim"] == 640
    assert records["wide-resnet-28-10"]["additional_cifar100_absolute_paper"] == 42.46e6


def test_measured_times_stand_beside_the_papers(capsys):
    main(
        ["networks", "--only", "fast-cnn", "resnet-32", "--measure", "--steps", "1", "--batch-size", "4", "--json", "-"]
    )
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert list(records) == ["resnet-32", "fast-cnn"]
    assert records["resnet-32"]["additional_cifar100_wall_time_paper"] == 1.85
    # A step cannot take less than no time.
    assert all(record["additional_cifar10_wall_time"] > -100 for record in records.values())
    assert records["fast-cnn"]["additional_cifar10_wall_time_paper"] is None


def test_networks_says_what_is_wrong():
    for words, told in (
        ("--only resnet-33", "did you mean"),
        ("--steps 0", "steps must"),
        ("--batch-size 1", "batch_"),
    ):
        with pytest.raises(SystemExit, match=told):
            main(["networks", *words.split()])


def test_the_folder_of_a_file_is_made(tmp_path, capsys):
    main(["networks", "--json", str(tmp_path / "missing" / "networks.json")])
    assert json.loads((tmp_path / "missing" / "networks.json").read_text())
    assert "resnet-110" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^isda: .*networks\.json could not be written"):
        main(["networks", "--json", str(tmp_path / "file" / "networks.json")])


def test_a_misspelt_command_suggests_the_right_one():
    with pytest.raises(SystemExit, match=r"^isda: no command 'netwroks'; did you mean 'networks'\?$"):
        main(["netwroks"])


def test_a_command_like_no_other_lists_the_commands():
    with pytest.raises(
        SystemExit, match=r"no command 'qqq'; there are train, compare, .*report, predict, evaluate, .*networks, data"
    ):
        main(["qqq"])


def test_a_misspelt_option_suggests_the_right_one(capsys):
    with pytest.raises(SystemExit):
        main(["networks", "--jsn", "x"])
    assert "--json" in capsys.readouterr().err


def test_help_names_every_command_and_imports_no_heavy_library():
    script = """
import sys
from isda.lab.cli import main
try:
    main(["--help"])
finally:
    heavy = {"torchvision", "timm", "sklearn", "matplotlib", "rich.table"} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "networks" in run.stdout
    assert "data" in run.stdout
    assert "heavy: []" in run.stdout


def test_the_package_runs_as_a_module():
    run = subprocess.run(
        [sys.executable, "-m", "isda", "networks", "--help"], capture_output=True, text=True, check=True
    )
    assert "--json FILE" in run.stdout
