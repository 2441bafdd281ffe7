"""What a run does when something goes wrong: one clear sentence, a non-zero code, and nothing half-written."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from isda.lab import networks
from isda.lab.cli import main
from isda.lab.engine import Hook
from isda.lab.train import Classification, NonFiniteLoss, Saving, Settings, Stopped, load_data, resolve, train

SETTINGS = Settings(labels=60, batch_size=20, width=0.25, epochs=4, method="isda")


@pytest.fixture(scope="module")
def run():
    data = load_data(SETTINGS)
    return resolve(SETTINGS, data), data


class StopAfter(Hook):
    """Interrupts a run as a signal would, after a step."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, step: int) -> None:
        if step == self.last:
            raise Stopped("enough")


def interrupted(run, folder: Path, step: int) -> None:
    with pytest.raises(Stopped):
        train(*run, folder, saving=Saving(steps=2), hooks=[StopAfter(step)])


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(*run, folder)
    return (folder / "model.safetensors").read_bytes()


def newest(folder: Path) -> Path:
    return sorted(folder.glob("checkpoints/step-*"))[-1]


class TestNonFiniteLoss:
    def test_names_the_step_and_keeps_the_last_good_checkpoint(self, run, tmp_path):
        config, data = run

        class Poison(Hook):
            def step(self, step: int) -> None:
                if step == 7:
                    with torch.no_grad():
                        network.classifier.bias.fill_(torch.nan)

        network = networks.create(config.network, num_classes=10, **config.network_options)
        with pytest.raises(NonFiniteLoss, match=r"in step 8; .*the checkpoint of step 6 is kept"):
            train(config, data, tmp_path, saving=Saving(steps=3), hooks=[Poison()], task=Classification(network))
        assert newest(tmp_path).stem == "step-000000006"
        kept = torch.load(newest(tmp_path), weights_only=True)["tensors"]["model"]
        assert all(tensor.isfinite().all() for tensor in kept.values())
        assert not (tmp_path / "result.json").exists()

    def test_the_command_ends_in_one_sentence(self, tmp_path):
        command = ["train", "--labels", "60", "--batch-size", "20", "--width", "0.25", "--epochs", "2", "--lr", "1e30"]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--out", str(tmp_path / "run")])
        assert re.search(r"step 2 failed: .*finite.*; there is no earlier checkpoint", str(ended.value.code))
        assert "\n" not in str(ended.value.code)


def test_a_label_out_of_range_ends_in_one_sentence(tmp_path):
    images = np.zeros((20, 8, 8), np.uint8)
    labels = np.arange(20) % 2
    bad = labels.copy()
    bad[7] = -3
    np.savez(tmp_path / "bad.npz", x_train=images, y_train=bad, x_test=images, y_test=labels)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--data", str(tmp_path / "bad.npz"), "--batch-size", "10", "--out", str(tmp_path / "run")])
    assert "-3" in str(ended.value.code)
    assert not (tmp_path / "run").exists()


class TestNoSpaceLeft:
    """A limit on file sizes makes every longer write fail as a full disk does: part is written, then an error."""

    COMMAND = (
        *(sys.executable, "-m", "isda", "train", "--labels", "60", "--batch-size", "20", "--epochs", "4"),
        *("--checkpoint-steps", "1", "--width", "0.25"),
    )

    def test_ends_in_one_sentence_and_nothing_is_half_written(self, run, tmp_path):
        folder = tmp_path / "run"
        limited = subprocess.run(
            [*self.COMMAND, "--out", folder],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
            capture_output=True,
            text=True,
        )
        assert limited.returncode == 1
        last = limited.stderr.strip().splitlines()[-1]
        assert last.startswith("isda: ")
        assert "could not be written" in last
        assert [path.name for path in (folder / "checkpoints").iterdir()] == []
        assert not (folder / "result.json").exists()

    def test_what_was_there_before_still_is_and_the_run_goes_on_later(self, run, whole, tmp_path, monkeypatch):
        from isda.lab.engine import checkpoint

        interrupted(run, tmp_path, step=5)
        before = newest(tmp_path)

        def full(content, path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.torch, "save", full)
            with pytest.raises(OSError, match=r"could not be written.*No space left on device"):
                train(*run, tmp_path, saving=Saving(steps=2))
        assert newest(tmp_path) == before
        assert not list((tmp_path / "checkpoints").glob(".*"))
        train(*run, tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == whole


@pytest.fixture
def ordinary_user():
    """Permissions do not bind root; give them up for the test where we have them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_ends_in_one_sentence(tmp_path, request):
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--labels", "60", "--batch-size", "20", "--epochs", "1", "--out", str(locked / "run")])
    assert "could not be created" in str(ended.value.code)
    assert "Permission denied" in str(ended.value.code)


class TestWhoseFolder:
    def test_a_second_run_does_not_overwrite_the_first(self, run, tmp_path):
        train(*run, tmp_path)
        with pytest.raises(SystemExit) as ended:
            main(["train", "--labels", "60", "--batch-size", "20", "--out", str(tmp_path)])
        assert "holds a run already; add --resume" in str(ended.value.code)

    def test_resume_with_other_settings_is_refused(self, run, tmp_path):
        interrupted(run, tmp_path, step=3)
        with pytest.raises(SystemExit) as ended:
            main(["train", "--epochs", "9", "--resume", "--out", str(tmp_path)])
        assert "epochs=4, not 9" in str(ended.value.code)

    def test_a_checkpoint_of_another_network_is_refused(self, run, tmp_path):
        config, data = run
        interrupted(run, tmp_path, step=3)
        other = networks.create(config.network, num_classes=10, in_channels=1, width=0.5)
        with pytest.raises(ValueError, match="does not fit this run"):
            train(config, data, tmp_path, task=Classification(other))
