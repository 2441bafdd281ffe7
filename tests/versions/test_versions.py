"""What the version before has written is read by this one, and what cannot be continued is refused in a sentence."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from isda.cli import main
from isda.engine.config import CONFIG_FORMAT, read_config
from isda.engine.run_records import find_runs
from versions.make import CRITERIA, criterion, loss

BEFORE = Path(__file__).parent / "0.1.0"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The files of the version before, to write in."""
    return shutil.copytree(BEFORE, tmp_path / "before")


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_goes_on_from_the_state_of_the_version_before(name: str) -> None:
    made = criterion(name)
    made.load_state_dict(load_file(BEFORE / f"{name}.safetensors"))
    assert made.strength == pytest.approx(0.25), "five of ten steps were done"
    torch.testing.assert_close(
        loss(made, 5).double(), torch.tensor(json.loads((BEFORE / "losses.json").read_text())[name]).double()
    )


@pytest.mark.parametrize("name", CRITERIA)
def test_the_version_before_finds_every_key_it_knows(name: str) -> None:
    """So that a checkpoint can travel back as well, as long as nothing new is in it."""
    now, then = criterion(name).state_dict(), load_file(BEFORE / f"{name}.safetensors")
    assert {key: (v.shape, v.dtype) for key, v in now.items()} == {key: (v.shape, v.dtype) for key, v in then.items()}


def test_runs_of_the_version_before_are_reported(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {run.folder.name: run for run in find_runs([before / "finished"])}
    assert {name: run.config.task for name, run in runs.items()} == {
        "cross-entropy": "classification",
        "isda": "classification",
        "held-out": "classification",
        "semi": "semi-supervised",
    }
    for run in runs.values():
        stored = json.loads((run.folder / "result.json").read_text())
        assert run.value == stored["error"]
        assert run.curve(run.headline.metric)[-1] == (2, stored["error_last"])
    main(["report", str(before / "finished"), "--out", str(before / "page.html")])
    assert "isda" in capsys.readouterr().out
    assert (before / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["isda", "cross-entropy", "semi"])
def test_runs_of_the_version_before_are_evaluated(name: str, before: Path) -> None:
    folder = before / "finished" / name
    main(["evaluate", str(folder), "--json", str(before / "out.json")])
    measured = json.loads((before / "out.json").read_text())
    assert measured["error"] == pytest.approx(json.loads((folder / "result.json").read_text())["error_last"])


def test_held_out_images_of_the_version_before_are_not_guessed(before: Path) -> None:
    folder = before / "finished" / "held-out"
    with pytest.raises(SystemExit, match=re.escape("a run of isda 0.1.0 (format 1) held out is not known")):
        main(["evaluate", str(folder)])
    main(["evaluate", str(folder), "--data", "digits"])


def test_a_run_of_the_version_before_is_not_continued(before: Path) -> None:
    folder = before / "unfinished"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SystemExit, match=re.escape("holds a run of isda 0.1.0 (format 1)")):
        main(["train", "--out", str(folder), "--resume"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": CONFIG_FORMAT + 1}, "a newer version of isda wrote it"),
        ({"format": 0}, f"of format {CONFIG_FORMAT}, got 0"),
        ({"format": True}, f"of format {CONFIG_FORMAT}, got True"),
        ({"format": None}, f"of format {CONFIG_FORMAT}, got None"),
        ({"classes": None}, "is not the configuration of format 1 that it says it is"),
    ],
)
def test_other_formats_are_refused(change: dict[str, object], complaint: str, before: Path) -> None:
    path = before / "finished" / "isda" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=complaint):
        read_config(path)
