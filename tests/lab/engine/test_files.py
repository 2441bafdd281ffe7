"""Files and checkpoints: written completely or not at all; the lock of a run folder; JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isda.lab.engine.checkpoint import Checkpoint, Checkpoints, State
from isda.lab.engine.run_folder import FolderInUse, folder_lock
from isda.lab.files import atomic_write, json_text, read_json, write_text

HOLD = """
import sys
from pathlib import Path
from pathlib import Path
from isda.lab.engine.run_folder import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def made(step: int) -> Checkpoint:
    tensors = {"model": {"weight": torch.full((2, 3), float(step))}}
    rest = {"optimiser": [{"lr": 0.1, "velocity": torch.full((2,), float(step))}]}
    return Checkpoint(step, State(tensors, rest), [{"epoch": 1, "error": 0.5}])


def test_an_error_leaves_the_old_content_and_no_other_file(tmp_path):
    path = tmp_path / "made" / "note.txt"
    write_text(path, "old")

    def half() -> None:
        with atomic_write(path) as unfinished:
            unfinished.write_text("half")
            raise ValueError("disk full")

    with pytest.raises(OSError, match=r"note.txt could not be written: disk full"):
        half()
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["note.txt"]


def test_a_file_keeps_its_permissions_and_a_link_its_target(tmp_path):
    path, link = tmp_path / "note.txt", tmp_path / "link"
    write_text(path, "old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)


def test_a_device_is_written_into_and_stays_one():
    write_text(Path(os.devnull), "gone")
    assert not os.path.isfile(os.devnull)


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    assert json.loads(json_text({"a": [1.5, float("nan")], "b": float("inf")})) == {"a": [1.5, None], "b": None}
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"x.json must hold a JSON object, got list"):
        read_json(tmp_path / "x.json")


def test_checkpoints_come_back_and_the_last_ones_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert (checkpoints.latest(), checkpoints.steps) == (None, [])
    for step in (2, 4, 10):
        checkpoints.save(made(step))
    assert checkpoints.steps == [4, 10]
    latest = checkpoints.latest()
    assert (latest.step, latest.metrics) == (10, made(10).metrics)
    assert torch.equal(latest.state.tensors["model"]["weight"], torch.full((2, 3), 10.0))
    assert torch.equal(latest.state.rest["optimiser"][0]["velocity"], torch.full((2,), 10.0))
    assert [checkpoint.step for checkpoint in checkpoints] == [4, 10]


def test_a_damaged_checkpoint_is_named_and_nothing_in_it_is_executed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(made(1))
    file = tmp_path / "step-000000001.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"step-000000001.pt is damaged; remove it"):
        checkpoints.latest()

    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    torch.save({"step": 1, "metrics": [], "tensors": {}, "rest": Harm()}, file)
    with pytest.raises(ValueError, match=r"step-000000001.pt is damaged"):
        checkpoints.latest()
    assert not (tmp_path / "harm").exists()


def test_a_folder_has_one_writer_until_it_ends_even_by_a_kill(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline().strip() == "locked"
        with pytest.raises(FolderInUse, match="is being written by another process"), folder_lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    with folder_lock(tmp_path):
        pass
