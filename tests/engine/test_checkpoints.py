"""Checkpoints by themselves: what comes back, what is kept, and what is not trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from isda.lab.engine.digests import file_digest

from isda.lab.engine import State
from isda.lab.engine import checkpoint as module
from isda.lab.engine.checkpoint import Checkpoint, Checkpoints, write_tensors

RUN = "a run"


def made(step: int, run: str = RUN) -> Checkpoint:
    weight = torch.arange(6.0).view(2, 3)
    tensors = {"model": {"weight": weight + step, "a view": weight.t()}, "method": {"count": torch.tensor([step])}}
    rest = {"optimiser": [{"lr": 0.1, "velocity": torch.full((2,), float(step))}], "seed": 7}
    return Checkpoint(step, State(tensors, rest), [{"epoch": 1, "error": 0.5}], run)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    """Three were saved, of which the last two are kept."""
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    for step in (2, 4, 10):
        checkpoints.save(made(step))
    return checkpoints


def test_what_was_saved_comes_back(checkpoints):
    loaded, complaints = checkpoints.load_latest(RUN)
    assert complaints == []
    expected = made(10)
    assert (loaded.step, loaded.run, loaded.metrics) == (10, RUN, expected.metrics)
    assert loaded.state.tensors.keys() == expected.state.tensors.keys()
    for group, tensors in expected.state.tensors.items():
        assert loaded.state.tensors[group].keys() == tensors.keys()
        assert all(torch.equal(loaded.state.tensors[group][name], tensor) for name, tensor in tensors.items())
    assert loaded.state.rest["seed"] == 7
    assert torch.equal(loaded.state.rest["optimiser"][0]["velocity"], torch.full((2,), 10.0))


def test_the_last_ones_are_kept(checkpoints):
    assert names(checkpoints.folder) == ["step-000000004", "step-000000010"]
    assert checkpoints.latest_step() == 10
    single = Checkpoints(checkpoints.folder, keep=1)
    single.save(made(11))
    assert names(checkpoints.folder) == ["step-000000011"]


def test_at_least_one_has_to_be_kept(tmp_path):
    assert Checkpoints(tmp_path, keep=1).keep == 1
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)


def test_a_step_that_is_saved_already_stays_as_it_is(checkpoints):
    checkpoints.save(made(10, run="another"))
    assert checkpoints.load_latest(RUN)[0].run == RUN


def test_without_any_there_is_nothing_to_load(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    checkpoints.tidy()
    assert checkpoints.load_latest(RUN) == (None, [])
    assert checkpoints.latest_step() is None
    assert not checkpoints.folder.exists()


def test_only_folders_with_the_number_of_a_step_are_checkpoints(checkpoints):
    (checkpoints.folder / "step-best").mkdir()
    assert checkpoints.latest_step() == 10
    assert checkpoints.load_latest(RUN)[1] == []


def test_a_checkpoint_of_another_run_is_refused(checkpoints):
    with pytest.raises(ValueError, match="step-000000010 is of another run; choose another folder"):
        checkpoints.load_latest("another")


def rewritten(folder: Path, **changes: object) -> None:
    """A manifest that somebody edited and signed again."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    del manifest["sha256"]
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


DAMAGE = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "no JSON": (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is not valid JSON: "),
    "a list": (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is of another checkpoint"),
    "another step": (lambda folder: rewritten(folder, step=9), "manifest.json is of another checkpoint"),
    "an edited manifest": (
        lambda folder: (folder / "manifest.json").write_text(
            (folder / "manifest.json").read_text().replace('"error": 0.5', '"error": 0.1')
        ),
        "manifest.json was changed after it was written",
    ),
    "no manifest's digest": (
        lambda folder: (folder / "manifest.json").write_text('{"step": 10, "files": {}, "groups": []}'),
        "manifest.json has no digest",
    ),
    "a file is missing": (lambda folder: (folder / "rest.pt").unlink(), "rest.pt is missing"),
    "a file is longer": (lambda folder: lengthen(folder / "model.safetensors"), r"model.safetensors has \d+ bytes ins"),
    "a file is altered": (lambda folder: alter(folder / "rest.pt"), "rest.pt was changed after it was written"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_skipped_with_a_sentence_and_can_be_discarded(checkpoints, damage):
    spoil, sentence = DAMAGE[damage]
    spoil(checkpoints.folder / "step-000000010")
    loaded, (complaint,) = checkpoints.load_latest(RUN)
    assert loaded.step == 4
    assert loaded.state.tensors["method"]["count"].tolist() == [4]
    with pytest.raises(AssertionError, match=rf"step-000000010 is damaged and was skipped: {sentence}"):
        raise AssertionError(complaint)
    checkpoints.discard_after(4)
    assert names(checkpoints.folder) == ["step-000000004"]


def test_the_manifest_of_another_step_is_not_trusted(checkpoints):
    shutil.copytree(checkpoints.folder / "step-000000010", checkpoints.folder / "step-000000011")
    loaded, (complaint,) = checkpoints.load_latest(RUN)
    assert loaded.step == 10
    assert complaint.endswith("step-000000011 is damaged and was skipped: manifest.json is of another checkpoint")


def test_the_order_of_the_words_in_a_manifest_does_not_matter(checkpoints):
    path = checkpoints.folder / "step-000000010" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(manifest.items()))))
    loaded, complaints = checkpoints.load_latest(RUN)
    assert (loaded.step, complaints) == (10, [])


def test_when_all_are_damaged_every_one_is_complained_of(checkpoints):
    for folder in checkpoints.folder.iterdir():
        alter(folder / "rest.pt")
    loaded, complaints = checkpoints.load_latest(RUN)
    assert loaded is None
    assert ["step-000000010" in complaints[0], "step-000000004" in complaints[1], len(complaints)] == [True, True, 2]


def test_what_an_interrupted_write_left_behind_is_no_obstacle_and_is_tidied_away(checkpoints):
    for name in (".unfinished-step-000000012", ".removed-step-000000002"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.safetensors").write_bytes(b"half")
    (checkpoints.folder / ".DS_Store").write_bytes(b"of a file manager")
    checkpoints.save(made(12))
    assert checkpoints.load_latest(RUN)[0].step == 12
    checkpoints.tidy()
    (checkpoints.folder / ".DS_Store").unlink()
    assert names(checkpoints.folder) == ["step-000000010", "step-000000012"]


def test_a_write_that_fails_leaves_what_was_there_and_names_the_step(checkpoints, monkeypatch):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_tensors", full)
    before = names(checkpoints.folder)
    with pytest.raises(OSError, match=r"checkpoint of step 12 could not be written to .*step-000000012: .*No space"):
        checkpoints.save(made(12))
    assert names(checkpoints.folder) == before


def test_the_fingerprint_is_the_size_and_the_digest_of_the_whole_file(tmp_path):
    content = os.urandom(2**20 + 5)
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == {"bytes": 2**20 + 5, "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_of_tensors_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_tensors({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask
