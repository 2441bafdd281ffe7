"""States of criteria of the version before are read by this one, and its run folders are refused in a sentence."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from isda.lab.cli import main
from isda.lab.engine.config import CONFIG_FORMAT, read_config
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


@pytest.mark.parametrize("words", [["report", "{}"], ["evaluate", "{}"], ["train", "--resume", "--out", "{}"]])
def test_a_run_of_the_version_before_is_refused_in_one_sentence(words: list[str], before: Path) -> None:
    folder = before / "run"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    complaint = f"must be a run's configuration of format {CONFIG_FORMAT}, got 1; an earlier version of isda wrote it"
    with pytest.raises(SystemExit, match=re.escape(complaint)):
        main([word.format(folder) for word in words])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": CONFIG_FORMAT + 1}, "a newer version of isda wrote it"),
        ({"format": 0}, f"of format {CONFIG_FORMAT}, got 0"),
        ({"format": True}, f"of format {CONFIG_FORMAT}, got True"),
        ({"format": None}, f"of format {CONFIG_FORMAT}, got None"),
    ],
)
def test_other_formats_are_refused(change: dict[str, object], complaint: str, before: Path) -> None:
    path = before / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=complaint):
        read_config(path)
